"""Training programs that come with RLPTO: real data from scikit-learn and torchvision, generated data of any size."""
