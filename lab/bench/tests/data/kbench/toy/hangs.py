# Never returns.
def forward(q, k, v, scale):
    while True:
        pass
