"""Inputs of jobs, and what is in their folders: shared by the tests of jobs that go on."""

import numpy as np

from ragsys_kernels.offline import _manifest, sinks


def write_inputs(folder, queries, *, rows=200, dims=8, pool=6, seed=0):
    """Vectors and candidates as .npy files; returns the options of `select` that name them."""
    rng = np.random.default_rng(seed)
    arrays = {
        "corpus": rng.standard_normal((rows, dims), np.float32),
        "queries": rng.standard_normal((queries, dims), np.float32),
        "candidates": rng.permuted(np.broadcast_to(np.arange(rows)[:, None], (rows, rows)), axis=0)[
            :pool, rng.integers(0, rows, queries)
        ].T.copy(),
    }
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return {name: folder / f"{name}.npy" for name in arrays}


def restate(path, change):
    """Change what a manifest or record says, with the checksum of what it says then."""
    content = _manifest.unsealed(path.read_bytes())
    change(content)
    path.write_bytes(_manifest.sealed(content))


def at(out, name):
    """Where the job of a folder has a file."""
    return sinks.folder_at(out).of_job().at(name)


def contents(folder):
    """The bytes of all files, hidden ones too, by name, and of those that describe a job beside the folder."""
    beside = folder.with_name(f"{folder.name}.job")
    places = [folder, beside] if beside.exists() else [folder]
    return {path.name: path.read_bytes() for place in places for path in place.iterdir()}
