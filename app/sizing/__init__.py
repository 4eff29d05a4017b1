"""How large workloads and the fleet should be: recommendation, forecasts."""
