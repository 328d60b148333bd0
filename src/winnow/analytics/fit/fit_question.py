"""The question of a fit: which model, to which columns; and its program."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from pydantic import Field, model_validator

from winnow.analytics.fit.formula import Factor, Formula, parse_formula
from winnow.analytics.permissions import Permission
from winnow.analytics.question import Answer, MergedTerms, Question
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import ConfigError, suggest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from winnow.analytics.fit.design import DesignFactor
    from winnow.analytics.fit.fit_rows import FitRows, Response
    from winnow.analytics.program import Program
    from winnow.analytics.tables.owner_table import OwnerTable

Model = Literal["linear", "ridge", "logistic", "poisson", "gamma", "pca", "kmeans", "svm", "naive-bayes"]
MODELS: tuple[Model, ...] = get_args(Model)
WITHOUT_RESPONSE = ("pca", "kmeans")
SETTINGS_OF: Mapping[str, tuple[Model, ...]] = {
    "columns": ("pca", "kmeans"),
    "positive": ("logistic", "svm"),
    "penalty": ("ridge",),
    "clusters": ("kmeans",),
    "components": ("pca",),
    "features": ("svm",),
    "width": ("svm",),
    "cost": ("svm",),
    "seed": ("kmeans", "svm"),
}
"""Which models a setting is for."""
CLASSIFIERS = ("logistic", "svm", "naive-bayes")


class FitQuestion(Question):
    """`formula` for models with a response; `columns` for pca and kmeans, all numbers with bounds if none are named."""

    kind: Literal["fit"] = "fit"
    model: Model
    formula: str | None = Field(default=None, max_length=10_000)
    columns: tuple[str, ...] = ()
    positive: str | None = None
    """The value of the response that logistic and svm call 1; the last that is listed if it is not said."""
    penalty: float = Field(default=1.0, gt=0)
    """λ of ridge, for columns of deviation 1."""
    clusters: int = Field(default=8, ge=2, le=100)
    components: int | None = Field(default=None, ge=1)
    features: int = Field(default=100, ge=1, le=120)
    """Random features of svm."""
    width: float | None = Field(default=None, gt=0)
    """γ of svm's kernel exp(-γ‖x - x'‖²), 1/columns if it is not said."""
    cost: float = Field(default=1.0, gt=0)
    """C of svm."""
    seed: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _consistent(self) -> "FitQuestion":
        if self.model in WITHOUT_RESPONSE and self.formula is not None:
            raise ValueError(f"{self.model} predicts nothing: name columns instead of a formula")
        if self.model not in WITHOUT_RESPONSE and self.formula is None:
            raise ValueError(f"{self.model} needs a formula such as 'y ~ a + b'")
        for name, models in SETTINGS_OF.items():
            if self.model not in models and getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} is for {' and '.join(models)}, not for {self.model}")
        if self.epsilon is not None:
            raise ValueError("a fit cannot be made noisy yet; statistics can (winnow stats --epsilon)")
        return self

    def needs(self) -> frozenset[Permission]:
        return frozenset({"fit"})

    def program(self, terms: MergedTerms) -> "Program[Answer]":
        from winnow.analytics.fit.check_rows import checked_sample  # noqa: PLC0415 - reading a question loads no tables
        from winnow.analytics.fit.design import make_design  # noqa: PLC0415
        from winnow.analytics.fit.fit_rows import FitRows  # noqa: PLC0415

        declaration = terms.declaration
        formula = self._formula(declaration)
        design = make_design(formula, declaration)
        if self.model == "naive-bayes" and formula.interacts:
            raise ConfigError("naive-bayes takes single columns; remove ':' and '*' from the formula")
        response, classes = self._response(declaration, formula)
        sample = FitRows(design, response, max(len(classes), 1))
        pairs = self.model != "naive-bayes"
        checked = yield from checked_sample(sample, terms.minimum, classes, pairs=pairs)
        found = yield from self._fitted(checked, terms, formula)
        return {
            "kind": self.kind,
            "model": self.model,
            "table": self.table,
            "formula": self.formula,
            "owners": list(terms.owners),
            "minimum": terms.minimum,
            "rows": checked.rows,
            "response": None if formula.response is None else str(formula.response),
            "classes": list(classes),
            "pooled": list(checked.pooled),
            "dropped": sorted(checked.design.dropped),
            "rare": len(checked.rare),
            "design": design_record(checked, declaration),
            **found,
        }

    def _formula(self, declaration: TableDeclaration) -> Formula:
        if self.formula is not None:
            parsed = parse_formula(self.formula)
            # Of svm and naive Bayes the intercept is a part of its own.
            keeps = self.model not in ("svm", "naive-bayes")
            return parsed if keeps else Formula(parsed.response, parsed.terms, intercept=False)
        named = self.columns or tuple(
            name for name, each in declaration.columns.items() if each.bounds is not None and each.level != "private"
        )
        if not named:
            raise ConfigError(f"table '{self.table}' has no number with bounds; name columns, or declare bounds")
        return Formula(None, tuple((Factor(name),) for name in named), intercept=False)

    def _response(self, declaration: TableDeclaration, formula: Formula) -> tuple["Response | None", tuple[str, ...]]:
        from winnow.analytics.fit.design import usable  # noqa: PLC0415

        if formula.response is None:
            return None, ()
        name, declared = formula.response.column, usable(declaration, formula.response.column)
        if self.model not in CLASSIFIERS:
            if declared.bounds is None:
                raise ConfigError(f"column '{name}' has no bounds; write bounds = [low, high] in its declaration")
            logs = formula.response.use == "log"
            if (logs or self.model == "gamma") and declared.bounds[0] <= 0:
                what = f"log({name})" if logs else f"gamma's response '{name}'"
                raise ConfigError(f"{what} needs bounds above 0")
            if self.model == "poisson" and declared.bounds[0] < 0:
                raise ConfigError(f"poisson's response '{name}' counts; its bounds must not be below 0")
            return lambda table: np.log(table.numbers(name)) if logs else table.numbers(name), ()
        values = _class_names(name, declared.categories, declared.bounds)
        if self.model == "naive-bayes":
            return lambda table: _codes(table, name, values), values
        positive = self._positive(name, values)
        other = values[1 - values.index(positive)] if len(values) == 2 else f"not {positive}"
        place = values.index(positive)
        return lambda table: _equals(_codes(table, name, values), place), (other, positive)

    def _positive(self, name: str, values: tuple[str, ...]) -> str:
        if self.positive is not None:
            if self.positive not in values:
                raise ConfigError(f"positive = '{self.positive}': {suggest(self.positive, values, at_most=12)}")
            return self.positive
        if len(values) > 2:
            raise ConfigError(f"{self.model} tells two values apart; '{name}' has {len(values)}: say which is positive")
        return values[-1]

    def _fitted(self, sample: "FitRows", terms: MergedTerms, formula: Formula) -> "Program[dict[str, Any]]":
        from winnow.analytics.fit import families  # noqa: PLC0415
        from winnow.analytics.fit.clusters import kmeans_program  # noqa: PLC0415
        from winnow.analytics.fit.decomposition import pca_program  # noqa: PLC0415
        from winnow.analytics.fit.kernel_machine import svm_program  # noqa: PLC0415
        from winnow.analytics.fit.naive_bayes import naive_bayes_program  # noqa: PLC0415
        from winnow.analytics.fit.regression import glm_program, linear_program  # noqa: PLC0415

        if self.model == "pca":
            return pca_program(sample, self.components)
        if self.model == "kmeans":
            return kmeans_program(sample, self.clusters, terms.minimum, self.seed)
        if self.model == "svm":
            return svm_program(
                sample, terms.minimum, features=self.features, width=self.width, cost=self.cost, seed=self.seed
            )
        if self.model == "naive-bayes":
            return naive_bayes_program(sample, terms.minimum)
        if self.model == "logistic":
            return glm_program(sample, families.Binomial())
        assert formula.response is not None
        bounds = terms.declaration.column(formula.response.column).bounds
        assert bounds is not None
        low, high = (float(np.log(each)) for each in bounds) if formula.response.use == "log" else bounds
        if self.model == "poisson":
            return glm_program(sample, families.Poisson(high))
        if self.model == "gamma":
            return glm_program(sample, families.Gamma(low, high))
        return linear_program(sample, max(abs(low), abs(high)), self.penalty if self.model == "ridge" else 0.0)


def _class_names(name: str, categories: tuple[Any, ...] | None, bounds: tuple[float, float] | None) -> tuple[str, ...]:
    if categories is not None and len(categories) > 1:
        return tuple(str(each) for each in categories)
    if bounds == (0.0, 1.0):
        return ("0", "1")
    raise ConfigError(f"column '{name}' has no list of values; write values = […] in its declaration")


def _codes(table: "OwnerTable", name: str, values: tuple[str, ...]) -> Any:
    if table.declaration.column(name).categories is None:
        return np.round(table.numbers(name))
    codes = table.codes(name).astype(float)
    return np.where(codes < 0, np.nan, codes)


def _equals(codes: Any, place: int) -> Any:
    return np.where(np.isnan(codes), np.nan, (codes == place).astype(float))


def _level_places(factors: "Sequence[DesignFactor]", product: tuple[int, ...]) -> list[int]:
    """Of each factor, the group of levels that a product is about; 0 for numbers."""
    return [at + int(getattr(factor, "reference", 0)) for factor, at in zip(factors, product, strict=True)]


def design_record(sample: "FitRows", declaration: TableDeclaration) -> dict[str, Any]:
    """What makes a row of the design out of a row of the data: enough to predict with."""
    from winnow.analytics.fit.design import DesignCategory  # noqa: PLC0415

    factors = {str(each.factor): each for term in sample.design.factors for each in term}
    described = {}
    for name, each in factors.items():
        about: dict[str, Any] = {"column": each.factor.column, "use": each.factor.use}
        if isinstance(each, DesignCategory):
            listed = declaration.column(each.factor.column).categories or ()
            about["levels"] = [[str(listed[level]) for level in group] for group in each.groups]
        described[name] = about
    terms = [
        {
            "name": each.name,
            "factors": [str(f.factor) for f in sample.design.factors[each.term]],
            "at": _level_places(sample.design.factors[each.term], each.product),
        }
        for each in sample.design.columns
    ]
    return {"intercept": sample.design.formula.intercept, "factors": described, "terms": terms}
