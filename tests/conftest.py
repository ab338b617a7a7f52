"""What holds for all tests."""

from hypothesis import HealthCheck, settings

# Two loaded cores are late now and then: a time is never a reason to fail.
settings.register_profile("cprjob", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("cprjob")
