//! Durable writes per second at 1, 10 and 100 concurrent writers, and what a million keys cost.
//! `cargo bench -p cortex --bench store [-- --keys N]`; the disk is that of `TMPDIR`.

use std::time::{Duration, Instant};

use bytes::Bytes;
use cortex::driver::Clock;
use cortex::layout::DataDirectory;
use cortex::store::{SharedStore, open};
use model::Prefix;

const RUN: Duration = Duration::from_secs(3);
const WRITERS: [usize; 3] = [1, 10, 100];

fn main() -> anyhow::Result<()> {
    let arguments: Vec<String> = std::env::args().collect();
    let keys = arguments.iter().position(|argument| argument == "--keys");
    let keys = keys.and_then(|at| arguments.get(at + 1)).map(|n| n.parse()).transpose()?;
    let runtime = tokio::runtime::Runtime::new()?;
    let directory = tempfile::tempdir()?;
    let layout = DataDirectory::new(directory.path().join("data"), directory.path());
    let open = || open(&layout, "bench".parse()?, Clock::start()).map_err(anyhow::Error::from);
    let store = open()?;
    match keys {
        None => {
            for writers in WRITERS {
                let rate = runtime.block_on(writes_per_second(&store, writers));
                println!("{writers:>4} writers: {rate:>8.0} durable writes/s");
            }
            runtime.block_on(store.close())?;
        }
        Some(keys) => {
            let before = resident_kib()?;
            runtime.block_on(fill(&store, keys));
            println!("{} bytes of memory per key", (resident_kib()? - before) * 1024 / keys);
            runtime.block_on(store.close())?;
            drop(store);
            let start = Instant::now();
            let store = open()?;
            println!("opened again in {:.2} s", start.elapsed().as_secs_f64());
            let start = Instant::now();
            let found = runtime.block_on(store.keys(&Prefix::all()))?.len();
            println!("listed {found} keys in {:.2} s", start.elapsed().as_secs_f64());
        }
    }
    Ok(())
}

async fn write(store: &SharedStore, key: String) {
    let value = Bytes::from_static(&[b'v'; 100]);
    let key = key.parse().expect("a well-formed key");
    store.set(key, value).await.expect("the disk has room");
}

async fn writes_per_second(store: &SharedStore, writers: usize) -> f64 {
    let start = Instant::now();
    let tasks: Vec<_> = (0..writers)
        .map(|writer| {
            let store = store.clone();
            tokio::spawn(async move {
                let mut written = 0u64;
                while start.elapsed() < RUN {
                    write(&store, format!("bench::{writer}::{}", written % 100)).await;
                    written += 1;
                }
                written
            })
        })
        .collect();
    let mut total = 0;
    for task in tasks {
        total += task.await.expect("writers do not panic");
    }
    total as f64 / start.elapsed().as_secs_f64()
}

async fn fill(store: &SharedStore, keys: u64) {
    const TASKS: u64 = 500;
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let store = store.clone();
            tokio::spawn(async move {
                for n in (task..keys).step_by(TASKS as usize) {
                    write(&store, format!("app::{:04}::k{n:07}", n % 1000)).await;
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("writers do not panic");
    }
}

fn resident_kib() -> anyhow::Result<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"));
    let word = line.and_then(|line| line.split_whitespace().nth(1));
    Ok(word.ok_or_else(|| anyhow::anyhow!("no VmRSS"))?.parse()?)
}
