"""Lead times: how many steps before the loss diverges the monitors warn, in trainings whose instability builds up slowly."""
