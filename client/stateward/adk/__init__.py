"""Sessions of Google's Agent Development Kit in Stateward. Needs the extra `adk`."""

from stateward.adk.service import StatewardSessionService

__all__ = ["StatewardSessionService"]
