# %% [markdown]
# # Which of two defenses stops this attack?
# Judge a defense by the attacks that know about it: more of them are in docs/attacks.md.

# %%
from trained import digits_and_network

import prunella

model, batch, public = digits_and_network()
quick = {"ig.iterations": 60, "ig.labels-tried": 1}  # leave this out to attack in earnest

# %% Each with its own matched control: public images behind the same defense, and without one.
reports = {
    name: prunella.audit(model, batch, defenses=name, attacks="ig", settings=quick, public=public)
    for name in ("none", "dgp", "gaussian")
}
for name, report in reports.items():
    print(f"{name}: {report.verdict.badge}. {report.verdict.headline}")

# %% What of it rests on what: a row for each attacked update.
for name, report in reports.items():
    rows = report.table if isinstance(report.table, list) else report.table.to_dict("records")
    for row in rows:
        print(f"{name:<9} {row['kind']:<17} {row['words']}")
assert [line["defense"] for line in reports["dgp"].lines[:3]] == ["dgp", "none", "dgp"]
