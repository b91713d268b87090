//! Whether this machine has processors to spare.

/// With more of them, talking to clients goes on while the disk is waited for.
const CORES_FEW: usize = 2;

pub fn are_cores_few() -> bool {
    std::thread::available_parallelism().is_ok_and(|cores| cores.get() <= CORES_FEW)
}
