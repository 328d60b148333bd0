"""How good the labels are that a model gives, which only the recorder of a simulation can tell."""

import numpy as np
import torch

from winnow.data.preprocessing import NO_LABEL
from winnow.data.types import Targets
from winnow.learn.learning_site import LearningSite
from winnow.learn.pseudo_labels import sure_labels
from winnow.learn.stack import ModelState, TensorData
from winnow.runs.evaluation_record import PseudoLabelScores


def score_pseudo_labels(
    site: LearningSite, truth: Targets | None, threshold: float | None, model: ModelState
) -> PseudoLabelScores | None:
    """None where no label is hidden, or the method gives none."""
    if truth is None or threshold is None or not isinstance(site.data, TensorData):
        return None
    rows = torch.from_numpy(np.flatnonzero(truth != NO_LABEL))
    if not len(rows):
        return None
    guess, sure = sure_labels(site.evaluator.outputs(model, site.data.x, rows), threshold)
    right = guess.cpu() == torch.from_numpy(truth)[rows]
    sure = sure.cpu()
    known = float(right[sure].double().mean()) if sure.any() else None
    return PseudoLabelScores(samples=len(rows), sure=float(sure.double().mean()), right=known)
