"""The forecast of a series, shortly."""

import numpy as np

from examples import forecast


def test_the_pattern_repeats_each_week_and_changes():
  series = forecast.make_series(40)
  assert series.shape == (40 * forecast.WEEK, forecast.NUM_SENSORS)

  def correlation(hours):
    return np.corrcoef(series[:-hours].ravel(), series[hours:].ravel())[0, 1]

  assert correlation(forecast.WEEK) > 0.7
  assert correlation(forecast.WEEK) > correlation(10 * forecast.WEEK) + 0.1
  assert abs(correlation(forecast.WEEK // 2)) < 0.1


def test_all_forecasts_are_compared_hour_by_hour():
  week = forecast.WEEK
  test = forecast.make_series(15)[12 * week :]
  ahead = test[week + 1 :]
  expected = {
    "the hour before": ahead - test[week:-1],
    "the hour a week ago": ahead - test[1:-week],
  }
  found = forecast.errors(num_weeks=15, num_epochs=1)
  for name, difference in expected.items():
    np.testing.assert_allclose(found[name], np.sqrt(np.mean(difference**2)))
  assert len(found) == 4
  # Hardly trained, so they forecast about the mean; the deviation is 1.1.
  assert 0.5 < found["with memory"] < 1.5
  assert 0.5 < found["network without memory"] < 1.5
  assert found["with memory"] != found["network without memory"]
