"""The search for the highest rate: probes, simulated tests, the quick estimate. May import results and below.

search         the measurements and their order; with first_requests, trials and bench, which take them
measurements   what they show: the candidate for the full test
server_model   the server as they show it; with prediction and simulation, by which full tests are predicted
full_tests     the rates of the full tests, each by those before it
quick          the estimate of --quick, from the same first measurements

Times are in seconds and rates in queries/s, unless a name says otherwise.
"""
