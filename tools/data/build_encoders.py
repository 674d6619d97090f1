"""Make data/encoders/ anew from the networks that a reproduction at night has kept: `python
tools/data/build_encoders.py`.

The runs are those of encoders.json, one of each headline arm. One whose training is not in the
night's store is trained, half an hour each.
"""

import hashlib
import json

from safetensors.torch import save

from curlnb.experiments.images import simclr
from curlnb.models import committed
from curlnb.runs import provenance
from curlnb.runs.files import write_atomically
from curlnb.runs.store import Store, default_store


def main():
    store, about = Store(default_store("night").root), committed.catalogue()
    for name, row in about.items():
        asked = simclr.asked(row["parameters"], row["seed"])
        record = store.run(asked)
        state = store.trained(simclr, asked.parameters, asked.seed).model.state_dict()
        content = save({key: tensor.contiguous() for key, tensor in state.items()})
        (committed.folder() / f"{name}.safetensors").write_bytes(content)
        row |= {key: record[key] for key in ("identity", "code", "machine")}
        row["metrics"] = {key: record["metrics"][key] for key in ("knn", "linear")}
        row |= {"commit": provenance.commit(), "sha256": hashlib.sha256(content).hexdigest()}
    text = json.dumps(about, indent=1) + "\n"
    write_atomically(committed.folder() / "encoders.json", lambda path: path.write_text(text))


if __name__ == "__main__":
    main()
