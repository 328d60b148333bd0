"""scikit-learn estimators as models: they train, are averaged, and come back as estimators that predict alike."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LinearRegression, LogisticRegression, Perceptron, Ridge, SGDClassifier, SGDRegressor
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import winnow

SMALL: dict[str, Any] = {"clients": 4, "rounds": 4, "reference": 40, "test": 40, "progress": False, "scale": "none"}
CLASSIFIERS = [SGDClassifier(), Perceptron(), LogisticRegression(), MLPClassifier((8,), activation="tanh")]
REGRESSORS = [SGDRegressor(), LinearRegression(), Ridge(fit_intercept=False), MLPRegressor(hidden_layer_sizes=8)]


def points(classes: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(3)
    labels = rng.integers(0, classes, 240)
    centres = 3.0 * np.eye(classes, 4)
    return (centres[labels] + rng.normal(size=(240, 4))).astype(np.float32), labels


def line(outputs: int = 1) -> tuple[np.ndarray, np.ndarray]:
    x, _ = points(2)
    weights = np.array([[1.0, 2.0, -1.0, 0.5], [0.5, 0.0, 1.0, -1.0]], np.float32)[:outputs]
    y = x @ weights.T
    return x, y[:, 0] if outputs == 1 else y


def name(estimator: Any) -> str:
    return type(estimator).__name__


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=name)
def test_a_classifier_learns_and_predicts_like_its_module(estimator: Any, classes: int) -> None:
    x, y = points(classes)
    result = winnow.run(model=estimator, data=(x, y), **SMALL)
    assert type(result.estimator) is type(estimator)
    assert result.estimator.get_params() == estimator.get_params()
    assert not hasattr(estimator, "classes_")
    with torch.no_grad():
        outputs = result.model(torch.from_numpy(x)).numpy()
    chosen = outputs[:, 0] > 0 if classes == 2 else outputs.argmax(1)
    assert (result.estimator.predict(x) == chosen).all()
    assert (result.estimator.predict(x) == y).mean() > 0.85
    if hasattr(estimator, "predict_proba") and name(estimator) != "SGDClassifier":
        two = np.concatenate([0 * outputs, outputs], axis=1) if classes == 2 else outputs
        expected = torch.softmax(torch.from_numpy(two), 1).numpy()
        np.testing.assert_allclose(result.estimator.predict_proba(x), expected, atol=1e-5)


@pytest.mark.parametrize("estimator", REGRESSORS, ids=name)
def test_a_regressor_learns_and_predicts_like_its_module(estimator: Any) -> None:
    x, y = line()
    result = winnow.run(model=estimator, data=(x, y), local={"learning_rate": 0.01}, **SMALL | {"rounds": 12})
    with torch.no_grad():
        expected = result.model(torch.from_numpy(x))[:, 0].numpy()
    np.testing.assert_allclose(result.estimator.predict(x), expected, atol=1e-4)
    assert result.best > 0.8


def test_several_targets() -> None:
    x, y = line(2)
    result = winnow.run(model=LinearRegression(), data=(x, y), **SMALL)
    with torch.no_grad():
        expected = result.model(torch.from_numpy(x)).numpy()
    np.testing.assert_allclose(result.estimator.predict(x), expected, atol=1e-4)


def test_a_client_trains_by_partial_fit() -> None:
    """One client and one round: scikit-learn's own result on the client's batches, in their order."""
    x, y = points(3)
    settings = SMALL | {"clients": 1, "rounds": 1, "algorithm": "fedavg", "select": {"fraction": 1.0}}
    settings["local"] = {"name": "sgd", "epochs": 2, "batch_size": 16}
    batches: list[Any] = []
    winnow.run(
        model=torch.nn.Linear(4, 3), data=(x, y), train=lambda model, own, context: batches.extend(own), **settings
    )
    estimator = SGDClassifier(learning_rate="constant", eta0=0.01, shuffle=False)
    found = winnow.run(model=estimator, data=(x, y), **settings)
    alone = SGDClassifier(learning_rate="constant", eta0=0.01, shuffle=False)
    for batch in batches:
        alone.partial_fit(batch.x.numpy().astype(np.float64), batch.y.numpy(), classes=[0, 1, 2])
    assert found.summary.best.round == 1
    np.testing.assert_allclose(found.estimator.coef_, alone.coef_, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(found.estimator.intercept_, alone.intercept_, rtol=1e-5, atol=1e-6)


def test_clients_whose_samples_are_not_finite_are_rejected_and_the_others_go_on() -> None:
    spoiled = [{"name": "pollution", "fraction": 0.5, "kind": "nan", "share": 0.5}]
    generator = torch.get_rng_state()
    settings = SMALL | {"algorithm": "fedavg", "select": {"fraction": 1.0}, "corruptions": spoiled}
    result = winnow.run(model=SGDClassifier(), data=points(2), **settings)
    rejected = {event.client for event in result.view.events() if type(event).__name__ == "Rejected"}
    assert len(rejected) == 2
    assert np.isfinite(result.estimator.coef_).all()
    assert result.best > 0.8
    assert torch.equal(torch.get_rng_state(), generator)


def test_labels_come_back_as_they_were() -> None:
    x, y = points(2)
    result = winnow.run(model=LogisticRegression(), data=(x, np.array(["ill", "well"])[y]), **SMALL)
    assert set(result.estimator.predict(x)) == {"ill", "well"}


def test_the_same_seed_gives_the_same_coefficients_and_a_run_resumes_as_itself(tmp_path: Path) -> None:
    data = points(3)
    whole = winnow.run(model=SGDClassifier(), data=data, **SMALL)
    half = SMALL | {"rounds": 2, "out": tmp_path / "run"}
    winnow.run(model=SGDClassifier(), data=data, **half)
    with pytest.raises(winnow.WinnowError, match="loss or training step"):
        winnow.run(model=SGDClassifier(alpha=0.1), data=data, **half | {"rounds": 4}, resume=True)
    resumed = winnow.run(model=SGDClassifier(), data=data, **half | {"rounds": 4}, resume=True)
    np.testing.assert_array_equal(resumed.estimator.coef_, whole.estimator.coef_)


@pytest.mark.parametrize(
    ("estimator", "data", "message"),
    [
        (RandomForestClassifier(), points(2), "RandomForestClassifier cannot be averaged by its coefficients; use one"),
        (make_pipeline(StandardScaler(), SGDClassifier()), points(2), "pass the last step of the pipeline alone"),
        (LogisticRegression, points(2), "LogisticRegression is a class; pass an instance"),
        (LinearRegression(), points(2), "LinearRegression predicts numbers, but the targets are classes"),
        (SGDClassifier(), line(), "SGDClassifier predicts classes, but the targets are numbers"),
        (SGDClassifier(average=True), points(2), "cannot be trained in parts with average or early_stopping"),
        (SGDRegressor(), line(2), "SGDRegressor predicts one number, but there are 2 targets"),
        (LogisticRegression(solver="none"), points(2), "LogisticRegression cannot be used: The 'solver' parameter"),
        (MLPRegressor(loss="poisson"), line(), "loss='poisson' has no counterpart here"),
    ],
)
def test_what_cannot_be_a_model_is_refused_in_one_line(estimator: Any, data: Any, message: str) -> None:
    with pytest.raises(winnow.WinnowError) as caught:
        winnow.run(model=estimator, data=data, **SMALL)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_it_says_what_of_the_estimator_is_not_used() -> None:
    partial = winnow.run(model=Perceptron(), data=points(2), **SMALL)
    assert "clients train by Perceptron.partial_fit, one after another" in partial.plan.notice
    steps = winnow.run(model=Ridge(), data=line(), **SMALL)
    assert "clients train Ridge by the steps of [local]; its own solver and penalty are not used" in steps.plan.notice
