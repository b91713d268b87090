//! This node's load, the larger of one-minute load per core and used memory, written when it
//! changed noticeably.

use std::time::Duration;

use anyhow::Context;
use model::node::{LOAD_CHANGE_PERCENT, LOAD_INTERVAL_MS, NodeLoad};
use model::record::{self, RECORD_VERSION, Unknown};
use model::{NodeId, TypedKey};

use runtime::driver::Clock;
use store::SharedStore;

/// Runs until writing fails. `fixed` is reported instead of what is measured.
pub async fn run(
    store: SharedStore,
    node: NodeId,
    clock: Clock,
    fixed: Option<u32>,
) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism()?.get();
    let mut written: Option<u32> = None;
    loop {
        let percent = match fixed {
            Some(percent) => percent,
            None => percent(
                &std::fs::read_to_string("/proc/loadavg")?,
                &std::fs::read_to_string("/proc/meminfo")?,
                cores,
            )?,
        };
        if written.is_none_or(|before| before.abs_diff(percent) >= LOAD_CHANGE_PERCENT) {
            let load = NodeLoad {
                v: RECORD_VERSION,
                percent,
                measured_at: clock.now(),
                unknown: Unknown::new(),
            };
            let key = TypedKey::NodeLoad(node.clone()).key();
            store.set(key, record::encode(&load).into()).await?;
            written = Some(percent);
        }
        tokio::time::sleep(Duration::from_millis(LOAD_INTERVAL_MS)).await;
    }
}

fn percent(loadavg: &str, meminfo: &str, cores: usize) -> anyhow::Result<u32> {
    let minute: f64 =
        loadavg.split_whitespace().next().context("/proc/loadavg is empty")?.parse()?;
    let field = |name: &str| -> anyhow::Result<f64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name));
        let kb = line.and_then(|rest| rest.split_whitespace().nth(1));
        Ok(kb.with_context(|| format!("/proc/meminfo has no {name}"))?.parse()?)
    };
    let memory = 1.0 - field("MemAvailable")? / field("MemTotal")?;
    let fraction = (minute / cores as f64).max(memory).max(0.0);
    Ok((fraction * 100.0).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_of_processor_and_memory_counts() {
        let memory = "MemTotal:       1000 kB\nMemFree: 1 kB\nMemAvailable:    400 kB\n";
        assert_eq!(percent("0.50 1 1 1/1 1", memory, 2).unwrap(), 60);
        assert_eq!(percent("3.00 1 1 1/1 1", memory, 2).unwrap(), 150);
        assert!(percent("", memory, 2).is_err());
    }
}
