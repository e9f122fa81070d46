# %% [markdown]
# # What could a curious server rebuild from one update of my model?
# Cells of a notebook, as Jupyter and editors open them; `python examples/audit_my_model.py` runs them, too.

# %%
from torch.nn.functional import cross_entropy
from trained import digits_and_network

import prunella

model, (x, y), public = digits_and_network()  # put your own torch.nn.Module, images in [0, 1] and labels here

# %% One update of the model, attacked. r-gap solves layer after layer: exact for one image and layers like these.
model.zero_grad()
cross_entropy(model(x), y).backward()
result = prunella.attack(prunella.view(model, shape=(1, 8, 8), batch=1), "r-gap")
print(result)  # in a notebook, `result` shows the pictures

# %% The same as an audit: scores beside their baselines, the matched control, and a verdict.
report = prunella.audit(model, (x, y), attacks="r-gap", public=public)
print(report)
assert report.verdict.badge == "Leak found"
