"""Instruments that show what autograd does with a model of yours: gradients, reductions, aliasing, the graph.

They need torch alone (and matplotlib to draw), and work on any module, with the rest of the package or without.
"""

from hogwild.autograd.aliasing import GradientAlias, StaleGradient, gradient_aliases, watch_gradients
from hogwild.autograd.averaging import Average, Losses, accumulate_average, average_gradients, mean_loss
from hogwild.autograd.drawing import draw_graph
from hogwild.autograd.graph import GraphSummary, Operation, graph_summary
from hogwild.autograd.reductions import ReductionGradients, ReductionLoss, reduction_gradients

__all__ = [
    "Average",
    "GradientAlias",
    "GraphSummary",
    "Losses",
    "Operation",
    "ReductionGradients",
    "ReductionLoss",
    "StaleGradient",
    "accumulate_average",
    "average_gradients",
    "draw_graph",
    "gradient_aliases",
    "graph_summary",
    "mean_loss",
    "reduction_gradients",
    "watch_gradients",
]
