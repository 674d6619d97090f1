"""Make data/encoders/ from the networks that a reproduction at night has kept: `python
tools/data/build_encoders.py`.

One network, seed 0, of each of the four headline arms. Those whose training is not in the night's
store are trained, half an hour each.
"""

import hashlib
import json

from safetensors.torch import save

from curlnb.companion import notebooks
from curlnb.experiments.images import simclr
from curlnb.models.committed import folder
from curlnb.runs import environment, provenance
from curlnb.runs.files import write_atomically
from curlnb.runs.store import default_store

ARMS = {
    "biased": dict(objective="biased"),
    "debiased": dict(objective="debiased", tau_plus=0.1),
    "unbiased": dict(objective="unbiased"),
    "hard": dict(objective="hard", tau_plus=0.1, beta=1.0),
}


def main() -> None:
    page = environment.home() / "notebooks" / "5_across_papers.ipynb"
    night = notebooks.settings_of(page)["night"]
    chosen = ("tau_plus", "beta")  # lists of several there
    recipe = {
        name: night[name] for name in simclr.parameters({}) if name in night and name not in chosen
    }
    store, about = default_store("night"), {}
    for name, arm in ARMS.items():
        parameters = simclr.parameters(recipe | arm)
        record = store.compute(simclr, parameters, 0)
        assert record is not None
        state = store.trained(simclr, parameters, 0).model.state_dict()
        content = save({key: tensor.contiguous() for key, tensor in state.items()})
        write_atomically(
            folder() / f"{name}.safetensors",
            lambda path, content=content: path.write_bytes(content),
        )
        kept = {
            key: record[key]
            for key in ("experiment", "parameters", "seed", "identity", "code", "machine")
        }
        scores = {key: record["metrics"][key] for key in ("knn", "linear")}
        about[name] = kept | {
            "metrics": scores,
            "commit": provenance.commit(),
            "sha256": hashlib.sha256(content).hexdigest(),
        }
    text = json.dumps(about, indent=1) + "\n"
    write_atomically(
        folder() / "encoders.json", lambda path: path.write_text(text, encoding="utf-8")
    )


if __name__ == "__main__":
    main()
