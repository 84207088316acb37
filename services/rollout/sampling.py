"""Drawing tokens from logits, each row by its own rules and seed.

Guarantees: a row's draw depends on its own logits, seed and place alone; its log-probability is that of the
distribution drawn from, after temperature and top-p.
Does not: draw a token of probability zero."""

import numpy as np
import torch

from services.rollout.noise import uniform
from services.rollout.sequence import Sequence


@torch.inference_mode()
def draw(logits_BV: torch.Tensor, rows: list[Sequence]) -> tuple[list[int], list[float]]:
    """A token and its log-probability for each row. Raises ValueError for logits that are NaN or +inf."""
    temperatures = [s.ask.temperature for s in rows]
    logp_BV = torch.log_softmax(_heated(logits_BV, temperatures), dim=-1)
    logp_BV = _nucleus(logp_BV, [s.ask.top_p if s.ask.temperature else 1.0 for s in rows])
    drawn_B = logp_BV.argmax(-1) if not any(temperatures) else _drawn(logp_BV, rows, temperatures)
    chosen_B = logp_BV.gather(1, drawn_B[:, None])[:, 0]
    _tell_top(logp_BV, rows)
    logprobs = chosen_B.tolist()
    if not all(-1e30 < value <= 1e-3 for value in logprobs):
        raise ValueError("the policy's logits are not finite: its weights are broken")
    return drawn_B.tolist(), [min(value, 0.0) for value in logprobs]


def _heated(logits_BV: torch.Tensor, temperatures: list[float]) -> torch.Tensor:
    if all(t in (0.0, 1.0) for t in temperatures):
        return logits_BV
    divisors = logits_BV.new_tensor([t or 1.0 for t in temperatures])
    return logits_BV / divisors[:, None]


def _drawn(logp_BV: torch.Tensor, rows: list[Sequence], temperatures: list[float]) -> torch.Tensor:
    """Inverse transform: the token whose stretch of the cumulative distribution the row's number falls in."""
    keys = np.array([s.ask.seed for s in rows], np.uint64)
    places = np.array([len(s.tokens) for s in rows], np.uint64)
    cdf_BV = logp_BV.double().exp().cumsum(-1)
    u_B = torch.from_numpy(uniform(keys, places)).to(cdf_BV.device) * cdf_BV[:, -1] * (1 - 1e-12)
    drawn_B = torch.searchsorted(cdf_BV, u_B[:, None], right=True)[:, 0].clamp(max=cdf_BV.shape[1] - 1)
    if all(temperatures):
        return drawn_B
    greedy_B = torch.tensor([t == 0 for t in temperatures], device=drawn_B.device)
    return torch.where(greedy_B, logp_BV.argmax(-1), drawn_B)


def _nucleus(logp_BV: torch.Tensor, top_p: list[float]) -> torch.Tensor:
    """Rows cut to their likeliest tokens that together reach top-p, and normalised again.

    A. Holtzman et al., "The curious case of neural text degeneration", arXiv:1904.09751."""
    if all(p >= 1 for p in top_p):
        return logp_BV
    sorted_BV, order_BV = logp_BV.sort(dim=-1, descending=True, stable=True)
    before_BV = sorted_BV.exp().cumsum(-1) - sorted_BV.exp()
    cut_BV = before_BV >= logp_BV.new_tensor(top_p)[:, None]
    cut_BV[:, 0] = False
    kept_BV = logp_BV.masked_fill(cut_BV.scatter(1, order_BV, cut_BV), float("-inf"))
    full_B = torch.tensor([p >= 1 for p in top_p], device=logp_BV.device)
    return torch.where(full_B[:, None], logp_BV, torch.log_softmax(kept_BV, dim=-1))


def _tell_top(logp_BV: torch.Tensor, rows: list[Sequence]) -> None:
    """Note the likeliest tokens for the rows that asked for them."""
    most = max(s.ask.top_logprobs for s in rows)
    if not most:
        return
    values, tokens = logp_BV.topk(min(most, logp_BV.shape[1]), dim=-1)
    for sequence, ids, logps in zip(rows, tokens.tolist(), values.tolist(), strict=True):
        if sequence.ask.top_logprobs:
            count = sequence.ask.top_logprobs
            pairs = zip(ids[:count], logps[:count], strict=True)
            sequence.top.append({token: logp for token, logp in pairs if logp > -1e30})
