"""Server side of the worker channel: authentication, sessions, ingest, push."""

from rex_operator.channel.identity import Authenticator, Identity, Refused, StaticTokens
from rex_operator.channel.server import PATH, ChannelHandler, ChannelServer

__all__ = ["PATH", "Authenticator", "ChannelHandler", "ChannelServer", "Identity", "Refused", "StaticTokens"]
