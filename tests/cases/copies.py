"""The ways in which a model is copied."""

import copy
import io
import pickle

import pytest
import torch


def saved(model):
    """Save the model whole and load it."""
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    return torch.load(file, weights_only=False)


def pickled(model):
    return pickle.loads(pickle.dumps(model))


WAYS = copy.deepcopy, pickled, saved
each_way = pytest.mark.parametrize("duplicate", WAYS)
