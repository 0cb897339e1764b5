"""The paper's experiments: data, models, training, and the tables and figures of each task.

``expected.toml`` holds what the paper printed. Everything that an experiment writes is reproducible from a seed.
"""
