//! The sums per application and instance, and how they are printed. Bounded: instances that were
//! replaced are added up under their slot, and the number of applications and slots is limited.

use std::collections::BTreeMap;
use std::fmt::Write;

use model::{ApplicationName, InstanceId};

use super::text::heading;
use super::{Labels, RequestRecord};

/// The maximum number of instances: more than one machine runs; beyond it, requests count for the
/// application alone.
const INSTANCES_MAX: usize = 10_000;
const APPLICATIONS_MAX: usize = 10_000;
/// The upper bounds of the buckets in microseconds; one more has none.
const BUCKETS_US: [u32; 12] = [
    1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 500_000, 1_000_000, 2_500_000,
    10_000_000,
];

/// A counter's name, its help text, and how to read its value.
type Total<S> = (&'static str, &'static str, fn(&S) -> f64);

#[derive(Default)]
pub struct Rollup {
    applications: BTreeMap<ApplicationName, Sums>,
    instances: BTreeMap<InstanceId, InstanceSums>,
}

#[derive(Default)]
struct Sums {
    /// The requests by method and status class: few, as methods are from a fixed list.
    requests: BTreeMap<(&'static str, u16), u64>,
    bytes_in: u64,
    bytes_out: u64,
    queue_us: u64,
    service_us: u64,
    total_us: u64,
    buckets: [u64; BUCKETS_US.len() + 1],
}

#[derive(Default)]
struct InstanceSums {
    requests: u64,
    errors: u64,
    service_us: u64,
}

impl Rollup {
    pub fn add(&mut self, record: &RequestRecord) {
        let Some(sums) = of(&mut self.applications, record.labels.application(), APPLICATIONS_MAX)
        else {
            return;
        };
        sums.add(record);
        let Labels::Instance { instance, .. } = &*record.labels else { return };
        if let Some(sums) = of(&mut self.instances, instance, INSTANCES_MAX) {
            sums.requests += 1;
            sums.errors += u64::from(record.status >= 500);
            sums.service_us += u64::from(record.service_us);
        }
    }

    pub fn forget(&mut self, application: &ApplicationName) {
        self.applications.remove(application);
        self.instances.retain(|instance, _| instance.application != *application);
    }

    pub fn prometheus(&self, dropped: u64, refused: u64) -> String {
        let mut out = String::new();
        // Writing to memory cannot fail.
        let _ = self.write(&mut out, dropped, refused);
        out
    }

    fn write(&self, out: &mut String, dropped: u64, refused: u64) -> std::fmt::Result {
        let apps = &self.applications;
        let help = "Requests that were answered, by method and class of status";
        heading(out, "cortex_requests_total", "counter", help)?;
        for (app, sums) in apps {
            for ((method, class), count) in &sums.requests {
                writeln!(
                    out,
                    "cortex_requests_total{{application=\"{app}\",method=\"{method}\",\
                     status=\"{class}xx\"}} {count}"
                )?;
            }
        }
        let help = "From a request's head to the end of its answer, the queue included";
        heading(out, "cortex_request_duration_seconds", "histogram", help)?;
        for (app, sums) in apps {
            sums.write_histogram(out, app)?;
        }
        let totals: [Total<Sums>; 4] = [
            ("cortex_received_bytes_total", "Bytes of requests, heads included", |sums| {
                sums.bytes_in as f64
            }),
            ("cortex_sent_bytes_total", "Bytes of answers, heads included", |sums| {
                sums.bytes_out as f64
            }),
            ("cortex_queue_seconds_total", "What requests waited for an instance", |sums| {
                sums.queue_us as f64 / 1e6
            }),
            ("cortex_service_seconds_total", "What requests took without the queue", |sums| {
                sums.service_us as f64 / 1e6
            }),
        ];
        for (name, help, value) in totals {
            heading(out, name, "counter", help)?;
            for (app, sums) in apps {
                writeln!(out, "{name}{{application=\"{app}\"}} {}", value(sums))?;
            }
        }
        let totals: [Total<InstanceSums>; 3] = [
            ("cortex_instance_requests_total", "Requests that this instance answered", |sums| {
                sums.requests as f64
            }),
            (
                "cortex_instance_errors_total",
                "Those of them that failed, with a status of 500 or more",
                |sums| sums.errors as f64,
            ),
            (
                "cortex_instance_service_seconds_total",
                "What requests took that this instance answered",
                |sums| sums.service_us as f64 / 1e6,
            ),
        ];
        for (name, help, value) in totals {
            heading(out, name, "counter", help)?;
            for (id, sums) in &self.instances {
                let (app, label) = (&id.application, id.label());
                let value = value(sums);
                writeln!(out, "{name}{{application=\"{app}\",instance=\"{label}\"}} {value}")?;
            }
        }
        let help = "Requests that were not counted, as too many ended at once";
        heading(out, "cortex_records_dropped_total", "counter", help)?;
        writeln!(out, "cortex_records_dropped_total {dropped}")?;
        let help =
            "Clients' connections that were closed unserved: too many, or a bad PROXY header";
        heading(out, "cortex_connections_refused_total", "counter", help)?;
        writeln!(out, "cortex_connections_refused_total {refused}")
    }
}

/// Returns the sums of `key`, created if there are none and there is room for them.
fn of<'a, K: Ord + Clone, V: Default>(
    sums: &'a mut BTreeMap<K, V>,
    key: &K,
    count_max: usize,
) -> Option<&'a mut V> {
    if !sums.contains_key(key) {
        if sums.len() >= count_max {
            return None;
        }
        sums.insert(key.clone(), V::default());
    }
    sums.get_mut(key)
}

impl Sums {
    fn add(&mut self, record: &RequestRecord) {
        *self.requests.entry((record.method, record.status / 100)).or_default() += 1;
        self.bytes_in += record.bytes_in;
        self.bytes_out += record.bytes_out;
        self.queue_us += u64::from(record.queue_us);
        self.service_us += u64::from(record.service_us);
        self.total_us += u64::from(record.total_us);
        let bucket = BUCKETS_US.iter().position(|end| record.total_us <= *end);
        self.buckets[bucket.unwrap_or(BUCKETS_US.len())] += 1;
    }

    fn write_histogram(&self, out: &mut String, app: &ApplicationName) -> std::fmt::Result {
        const NAME: &str = "cortex_request_duration_seconds";
        let mut sum = 0;
        for (index, count) in self.buckets.iter().enumerate() {
            sum += count;
            let end = BUCKETS_US.get(index).map(|end| f64::from(*end) / 1e6);
            let end = end.map_or("+Inf".into(), |end| end.to_string());
            writeln!(out, "{NAME}_bucket{{application=\"{app}\",le=\"{end}\"}} {sum}")?;
        }
        writeln!(out, "{NAME}_sum{{application=\"{app}\"}} {}", self.total_us as f64 / 1e6)?;
        writeln!(out, "{NAME}_count{{application=\"{app}\"}} {sum}")
    }
}
