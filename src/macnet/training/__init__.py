"""From batches to a trained network.

A `Trainer` takes a network through the stages of its teaching. In each, a `Loop` decides when to
validate, save and end, and a `Learner` makes the steps. What is on disk of it is a `Run`; how far
it has come is its `Standing`. What a stage does is data, in `recipes` and `objectives`.
"""
