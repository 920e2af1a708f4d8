"""The brain of the cluster: how many workers a job gets on which pools, from what the nodes have left."""

from rex_operator.placement.gang import Placement, place
from rex_operator.placement.nodes import Demand, Node, PoolRequest, Taint, Toleration
from rex_operator.placement.victims import Live, choose_victims

__all__ = ["Demand", "Live", "Node", "Placement", "PoolRequest", "Taint", "Toleration", "choose_victims", "place"]
