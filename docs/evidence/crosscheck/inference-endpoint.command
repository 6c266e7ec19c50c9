inference-endpoint benchmark from-config -c crosscheck/inference-endpoint/configuration.yaml
