"""What all tests share: hypothesis without a clock, since the machine may be busy."""

from hypothesis import settings

settings.register_profile("calm", deadline=None)
settings.load_profile("calm")
