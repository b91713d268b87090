//! The cores of this machine: whether it has any to spare.

/// The number of cores up to which they count as few; with more, the node serves clients while it
/// waits for the disk.
const CORES_FEW: usize = 2;

pub fn are_cores_few() -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() <= CORES_FEW)
}
