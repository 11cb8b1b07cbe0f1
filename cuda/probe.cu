// Launched once on a device to learn whether it takes clusters as large as those of the tiles.
namespace householder {

constexpr int PROBE_CLUSTER = 8;

__global__ void CLUSTER_OF(PROBE_CLUSTER) __launch_bounds__(WARP) probe_clusters() { cluster_sync(); }

}  // namespace householder
