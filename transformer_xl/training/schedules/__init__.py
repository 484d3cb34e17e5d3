"""Learning-rate schedules, one a file; `schedule.py` is their interface."""
