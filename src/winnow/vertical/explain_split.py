"""Who learns what in split learning and in transfer learning."""

from winnow.vertical.split_plan import SplitPlan
from winnow.vertical.transfer_plan import TransferPlan


def who_learns_what(plan: SplitPlan) -> tuple[str, ...]:
    """One line a party."""
    if isinstance(plan, TransferPlan):
        return _in_transfer(plan)
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


def _in_transfer(plan: TransferPlan) -> tuple[str, ...]:
    labels, receiver, protection = plan.labels, plan.receiver, plan.protection
    lines = [
        f"{labels}, {receiver}: which keys both of them have",
        f"{labels}: representations of every common row at {receiver}, from which its columns can be guessed",
        f"{receiver}: the head at the end, and what classes are called; with it, it labels its own rows by itself",
        "server: how many keys they have in common, lengths of messages, scores; no representation, gradient or head",
    ]
    if protection.noise:
        bound = f"ε = {protection.epsilon(plan.epochs):.3g}, δ = {protection.delta:g} for each label that is trained on"
        lines.append(
            f"{receiver}: gradients and a head that were trained with noise: {bound}. An epoch that has to begin again"
            " counts once more"
        )
        lines.append("scores are of common rows that are not trained on; their labels have no such guarantee")
    else:
        lines.append(
            f"{receiver}: gradients of common rows, from which their labels can be inferred, and by distances the"
            f" representations of these rows at {labels}"
        )
    lines.append("nobody: another owner's rows; rows that only one owner has leave nothing but their part in the head")
    return tuple(lines)
