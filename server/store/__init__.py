"""The run store: a directory of plain files that outlives the process and needs no service to read.

    run.json        what was run: id, status, error, note, settings, versions, times (ISO 8601), threat model, claims
    metrics.jsonl   one number a line, append-only: round, time (Unix seconds), metric, labels, value
    audits.jsonl    one audit a line, append-only (``schema.AuditLine``)
    pictures/       safetensors "original" and "reconstruction" [N, C, H, W] in [0, 1]: of controls, and of clients that
                    consented
    metrics.parquet the numbers as one table with a column per label, written when the run ends
    report.html     written by ``server.report.build``
    .writer         empty; locked by the one process that writes the run

``schema`` says what may stand in these files, ``write`` writes them, ``read`` reads them, and ``rows`` turns what a
round, a privacy ledger or an audit says into numbers for them.
"""
