"""What routers of experts and quantisers with a codebook choose."""
