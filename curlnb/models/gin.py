"""Networks on graphs: the GIN encoder and the two heads of InfoGraph.

Source: Sun et al. 2020; robinson2021, Appendices B.1 and D.2. torch_geometric, the extra `graphs`,
is imported when a network is made: everything else in this project works without it.
"""

import torch
from torch import Tensor, nn


class GIN(nn.Module):
    """Graph isomorphism network, as released.

    A layer is x -> batch norm(ReLU(MLP(x_v + sum over neighbours of x_u))). (x [nodes, d], edges
    [2, m], batch [nodes], graphs) -> (features of nodes [nodes, layers x width], features of graphs
    [graphs, layers x width]), the layers side by side; a graph's are the sums over its nodes. A
    node without edges keeps its own features alone. Initial weights come from torch's global
    generator. RuntimeError where torch_geometric is not installed.
    """

    def __init__(self, features: int, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        try:
            from torch_geometric.nn import GINConv
        except ImportError:
            raise RuntimeError(
                "graphs need torch_geometric, which is not installed: `make setup`, or `pip "
                "install torch-geometric`"
            ) from None
        sizes = [features] + [width] * (layers - 1)
        self.convolutions = nn.ModuleList(
            GINConv(nn.Sequential(nn.Linear(size, width), nn.ReLU(), nn.Linear(width, width)))
            for size in sizes
        )
        self.norms = nn.ModuleList(nn.BatchNorm1d(width) for _ in range(layers))

    def forward(
        self, x: Tensor, edges: Tensor, batch: Tensor, graphs: int
    ) -> tuple[Tensor, Tensor]:
        seen = []
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            x = norm(convolution(x, edges).relu())
            seen.append(x)
        nodes = torch.cat(seen, 1)
        return nodes, nodes.new_zeros(graphs, nodes.shape[1]).index_add(0, batch, nodes)


class InfoGraph(nn.Module):
    """GIN and the discriminator T(u, G) = local(h^u) . global(H(G)) (robinson2021, Appendix B.1).

    (x, edges, batch, graphs), as for `GIN`, -> scores [nodes, graphs], T of every node with every
    graph. Linear layers start from Xavier's uniform distribution with bias 0, as released. Probes
    use the encoder's graph features, before the head.
    """

    def __init__(self, features: int, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.encoder = GIN(features, width, layers)
        self.local, self.whole = Head(width * layers), Head(width * layers)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor, graphs: int) -> Tensor:
        nodes, pooled = self.encoder(x, edges, batch, graphs)
        return self.local(nodes) @ self.whole(pooled).T


class Head(nn.Module):
    """Three linear layers with ReLU and a linear shortcut, [n, dim] -> [n, dim]."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            *(layer for _ in range(3) for layer in (nn.Linear(dim, dim), nn.ReLU()))
        )
        self.shortcut = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        return self.block(x) + self.shortcut(x)
