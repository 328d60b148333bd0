"""Fits as scikit-learn objects: their fitted fields are set from what the owners opened, so that they predict."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from sklearn.cluster import KMeans
from sklearn.decomposition import PCA
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import GammaRegressor, LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.naive_bayes import CategoricalNB, GaussianNB
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC

from winnow.analytics.fit.design import INTERCEPT
from winnow.analytics.fit.design_transformer import DesignMatrix, LevelCodes

SMOOTHING = 1e-9
"""Of GaussianNB: this share of the largest variance is added to all."""


def estimator_of(answer: Mapping[str, Any]) -> Pipeline:
    """A pipeline from rows of the data to predictions."""
    if "counts" in answer:
        return Pipeline([("levels", LevelCodes(answer["design"])), ("model", _categorical_bayes(answer))])
    make = {"pca": _pca, "kmeans": _kmeans, "svm": _svm, "naive-bayes": _normal_bayes}.get(answer["model"], _regression)
    return Pipeline([("design", DesignMatrix(answer["design"])), *make(answer)])


def _regression(answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    estimates = {each["term"]: each["estimate"] for each in answer["terms"]}
    intercept = float(estimates.pop(INTERCEPT, 0.0))
    coefficients = np.array(list(estimates.values()))
    model: Any
    if answer["model"] == "logistic":
        model = LogisticRegression(C=np.inf)
        model.classes_ = np.array(answer["classes"])
        coefficients, model.intercept_ = coefficients[None, :], np.array([intercept])
    else:
        kinds = {"linear": LinearRegression, "ridge": Ridge, "poisson": PoissonRegressor, "gamma": GammaRegressor}
        model = kinds[answer["model"]]()
        model.intercept_ = intercept
        if answer["model"] in ("poisson", "gamma"):
            model._base_loss = model._get_loss()
    model.coef_, model.n_features_in_ = coefficients, coefficients.shape[-1]
    return [("model", model)]


def _scaler(answer: Mapping[str, Any]) -> StandardScaler:
    scaler = StandardScaler()
    scaler.mean_, scaler.scale_ = np.array(answer["mean"]), np.array(answer["sd"])
    scaler.var_, scaler.n_samples_seen_ = scaler.scale_**2, answer["rows"]
    scaler.n_features_in_ = len(scaler.mean_)
    return scaler


def _pca(answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    axes = np.array(answer["components"])
    model = PCA(n_components=len(axes))
    model.components_, model.mean_ = axes, np.zeros(axes.shape[1])
    model.explained_variance_ = np.array(answer["explained_variance"])
    model.explained_variance_ratio_ = np.array(answer["explained_share"])
    model.singular_values_ = np.sqrt(model.explained_variance_ * (answer["rows"] - 1))
    model.n_components_, model.n_features_in_, model.n_samples_ = len(axes), axes.shape[1], answer["rows"]
    model.noise_variance_ = 0.0
    return [("scale", _scaler(answer)), ("model", model)]


def _kmeans(answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    centres = np.array(answer["scaled_centres"])
    model = KMeans(n_clusters=len(centres))
    model.cluster_centers_, model.inertia_ = centres, answer["inertia"]
    model.n_iter_, model.n_features_in_, model._n_threads = answer["steps"], centres.shape[1], 1
    return [("scale", _scaler(answer)), ("model", model)]


def _svm(answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    directions = np.array(answer["directions"])
    sampler = RBFSampler(gamma=answer["gamma"], n_components=directions.shape[1])
    sampler.random_weights_, sampler.random_offset_ = directions, np.array(answer["phases"])
    sampler.n_features_in_ = len(directions)
    model = LinearSVC(C=answer["cost"])
    model.coef_, model.intercept_ = np.array([answer["weights"]]), np.array([answer["intercept"]])
    model.classes_, model.n_features_in_ = np.array(answer["classes"]), directions.shape[1]
    return [("scale", _scaler(answer)), ("features", sampler), ("model", model)]


def _normal_bayes(answer: Mapping[str, Any]) -> list[tuple[str, Any]]:
    model = GaussianNB(var_smoothing=SMOOTHING)
    model.classes_, model.class_prior_ = np.array(answer["classes"]), np.array(answer["priors"])
    model.theta_, variance = np.array(answer["mean"]), np.array(answer["variance"])
    model.epsilon_ = SMOOTHING * float(variance.max())
    model.var_ = variance + model.epsilon_
    model.class_count_, model.n_features_in_ = model.class_prior_ * answer["rows"], model.theta_.shape[1]
    return [("model", model)]


def _categorical_bayes(answer: Mapping[str, Any]) -> CategoricalNB:
    model = CategoricalNB()
    model.classes_, model.class_log_prior_ = np.array(answer["classes"]), np.log(np.array(answer["priors"]))
    model.class_count_ = np.array(answer["priors"]) * answer["rows"]
    model.category_count_ = [np.array(each) for each in answer["counts"]]
    model.n_categories_ = np.array([each.shape[1] for each in model.category_count_])
    model.n_features_in_ = len(model.category_count_)
    smoothed = [each + model.alpha for each in model.category_count_]
    model.feature_log_prob_ = [np.log(each) - np.log(each.sum(axis=1, keepdims=True)) for each in smoothed]
    return model
