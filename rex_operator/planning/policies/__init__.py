"""The planning policies, by the name that a RexJob selects them with."""

from rex_operator.planning.policies.adaptdl import AdaptDL
from rex_operator.planning.policies.always_accept import AlwaysAccept
from rex_operator.planning.policies.base import About, Adoption, Base, Policy, Rebalance, Rung, Scene
from rex_operator.planning.policies.boa import Boa
from rex_operator.planning.policies.cannikin import Cannikin
from rex_operator.planning.policies.dlb import Dlb
from rex_operator.planning.policies.dynamix import Dynamix
from rex_operator.planning.policies.even import Even
from rex_operator.planning.policies.lb_bsp import LbBsp
from rex_operator.planning.policies.lbb import Lbb
from rex_operator.planning.policies.omnilearn import OmniLearn
from rex_operator.planning.policies.raw_mwu import RawMwu
from rex_operator.planning.policies.rex import Rex
from rex_operator.planning.policies.saddle import Saddle

POLICIES: dict[str, type[Policy]] = {
    policy.about.name: policy
    for policy in (Rex, Even, Lbb, LbBsp, Boa, Dlb, OmniLearn, Saddle, AdaptDL, Cannikin, Dynamix, RawMwu, AlwaysAccept)
}
"""REX first, the rivals after it."""

__all__ = ["POLICIES", "About", "Adoption", "Base", "Even", "Policy", "Rebalance", "Rex", "Rung", "Scene"]
