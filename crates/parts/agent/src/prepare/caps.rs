//! The part of this machine that a build may take, so that what serves is never starved.

use std::time::Duration;

use model::application::Limits;

use shim::spec::Cap;

/// The divisor of the machine's memory: two builds at once leave as much to what serves.
const MEMORY_PART: u64 = 3;
/// The minimum memory of a build: today's package managers need as much. On a machine with no more,
/// the kernel kills builds before anything else.
const MEMORY_BYTES_MIN: u64 = 768 << 20;
/// The divisor of the machine's cores: the other half serves.
const CORES_PART: u32 = 2;
/// The maximum number of processes of a build: parallel compilers start some dozens; far more are a
/// mistake that forks for ever.
const PROCESSES_MAX: u32 = 1024;
/// The maximum duration of a build: a longer one hangs; compiling large native packages takes
/// minutes.
const TIME_MAX: Duration = Duration::from_secs(30 * 60);

/// Returns the time limit of all steps of one build together.
pub(super) fn time_max(limits: &Limits) -> Duration {
    limits.build_time_ms.map_or(TIME_MAX, Duration::from_millis)
}

pub(super) fn of_this_machine(limits: &Limits) -> Cap {
    let system = rustix::system::sysinfo();
    let memory_bytes = system.totalram.saturating_mul(u64::from(system.mem_unit));
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    cap(limits, memory_bytes, u32::try_from(cores).unwrap_or(u32::MAX))
}

fn cap(limits: &Limits, memory_bytes: u64, cores: u32) -> Cap {
    let part = (memory_bytes / MEMORY_PART).max(MEMORY_BYTES_MIN);
    Cap {
        memory_bytes: limits.build_memory_bytes.unwrap_or(part),
        processes: PROCESSES_MAX,
        cores: limits.build_cores.unwrap_or(cores / CORES_PART).max(1),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_build_gets_a_part_of_the_machine_unless_the_project_asks_for_more() {
        let free = Limits::default();
        let cap_of = |limits: &Limits, memory_bytes: u64, cores| {
            let Cap { memory_bytes, cores, .. } = cap(limits, memory_bytes, cores);
            (memory_bytes >> 20, cores)
        };
        assert_eq!(cap_of(&free, 24 << 30, 8), (8192, 4));
        assert_eq!(cap_of(&free, 1 << 30, 1), (768, 1));
        let asked = Limits {
            build_memory_bytes: Some(2 << 30),
            build_cores: Some(3),
            build_time_ms: Some(5_000),
            ..Limits::default()
        };
        assert_eq!(cap_of(&asked, 4 << 30, 4), (2048, 3));
        assert_eq!((time_max(&free), time_max(&asked)), (TIME_MAX, Duration::from_secs(5)));
    }
}
