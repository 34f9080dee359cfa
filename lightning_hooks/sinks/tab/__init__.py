"""The *Health* tab: the runs of a log directory in TensorBoard, from their files, without torch."""
