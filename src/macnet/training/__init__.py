"""Training: from data and a plan to a trained network in the folder of a run.

`train` is the whole of it. It opens `TrainingData`, makes a `TrainingPlan`, and lets a `Trainer`
take a network through the stages of its system. In each stage a `Loop` decides when to log,
validate, save and end, and a `Learner` makes the steps. A `RunFolder` is the run on disk; how far
it has come is its `TrainState`.
"""
