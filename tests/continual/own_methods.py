"""Methods of a user's, FILE.py:NAME: built-in learners with settings."""

from raycomp.continual.method import Method

untrained = Method("head", {"head.steps": 0, "buffer.kind": "none", "trust.mode": "off"})
sgd = Method("head", {"head.optimizer": "sgd", "head.learning_rate": 0.3})
merged = Method("c-clip", {"tune.merge": 1.0})
unknown = Method("heads")
misnamed = Method("head", {"head.stesp": 1})
