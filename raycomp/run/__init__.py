"""The life of a run, and all code that uses Ray.

Between "score" and a file stand seven words, one sentence each.
Stage: a step from a table to a table of the same rows with other columns, such as align (executor.py).
Pass: the way of rows from storage through stages into parts, once (executor.py).
Part: a file of some rows of one shard, which a pass wrote (executor.py).
Phase: a pass with a name, whose parts are merged into one file per shard (work.py).
Wave: shards of a phase that one manifest commits, every two minutes, so that a restart skips them (work.py).
Executor: runs passes and tasks, either in this process (local.py) or on Ray (ray_cluster.py).
Session: the scorers and CPUs that the executor has, as ``connect`` found them (local.py, ray_session.py).
"""
