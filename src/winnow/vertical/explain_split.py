"""Who learns what in split learning."""

from winnow.vertical.split_plan import SplitPlan


def who_learns_what(plan: SplitPlan) -> tuple[str, ...]:
    """One line a party."""
    senders = ", ".join(plan.senders)
    others = [name for name in plan.owners if name != plan.labels]
    lines = []
    if others:
        lines.append(f"{', '.join(plan.owners)}: which keys all of them have")
    if plan.middle is None:
        lines.append(f"{plan.labels}: activations of every common row at {senders}, from which features can be guessed")
        lines.append(
            "server: how many keys owners have in common, lengths of messages, scores; no activation or gradient"
        )
    else:
        lines.append(f"server: activations of every common row at {senders}, gradients of the middle's outputs, scores")
    receivers = senders if plan.middle is None else f"server and {senders}"
    protection = plan.protection
    if protection.noise:
        bound = f"ε = {protection.epsilon(plan.epochs):.3g}, δ = {protection.delta:g} for each label that is trained on"
        lines.append(f"{receivers}: gradients with noise: {bound}. An epoch that has to begin again counts once more")
        lines.append("scores are of rows that are not trained on; their labels have no such guarantee")
    else:
        lines.append(
            f"{receivers}: gradients at the cut, from which labels can be inferred; the report says how well"
            + (", norms apart" if protection.norms == "max-norm" else "")
        )
    lines.append("nobody: another owner's rows or modules")
    return tuple(lines)
