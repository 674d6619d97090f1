"""As few runs of a dry sweep as show that every profile's code runs."""

from dataclasses import replace

ALIKE = {  # their values change no metric's name
    "dataset", "encoder", "bn_groups", "positives", "views", "size", "batch", "precision",
    "objective", "negatives", "tau_plus", "beta", "schedule", "temperature", "momentum",
}  # fmt: skip
# encoders that a dry run need not train twice
LARGE = ("resnet18", "resnet34", "resnet50", "resnet50-imagenet", "vgg16", "vgg16_bn")
RUNS = {}  # by experiment: the values shown, and the last record of each form


def compute(jobs, executor, workers):
    """In the place of `sweep._compute`: run as few jobs as show every value of every parameter, up
    to the size of numbers above 2 and of fractions, in this process; the others have the metrics
    of the last run of the same form.

    Runs have the same form where all but those in ALIKE have the same value, up to the same sizes:
    what is true, None, above zero, a whole number above one or a name, a method's for example,
    decides which metrics there are (a dry run has one epoch, after which nothing is measured that
    comes every fifth). A large encoder that was trained once has the small one in its place later.
    """
    found = {}
    for job in jobs:
        shown, records = RUNS.setdefault(job.experiment.name, (set(), {}))
        values = {name: f"{name}={up_to_size(v)!r}" for name, v in job.parameters.items()}
        form = frozenset(value for name, value in values.items() if name not in ALIKE)
        if form not in records or not shown.issuperset(values.values()):
            seen = values.get("encoder") in shown and job.parameters["encoder"] in LARGE
            small = {"encoder": "cnn"} if seen else {}
            records[form] = job.store.run(replace(job, parameters=job.parameters | small))
            shown.update(values.values())
        found[job.key] = records[form] | {"identity": job.identity}
    return found


def up_to_size(value):
    if isinstance(value, float):
        return value > 0
    return min(value, 3) if isinstance(value, int) else value
