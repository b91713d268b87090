//! `cortex.toml`: parsed strictly, so that a mistyped key is an error and not a silent loss, then
//! validated. `cortex.example.toml` in the repository's root is its reference.

use std::collections::BTreeMap;

use model::application::{InstanceProtocol, RequestKey, RolloutMode};
use model::release::StaticMount;
use model::request::RequestLimits;
use model::{Egress, Isolation};
use serde::Deserialize;

use super::{
    CORTEX_TOML, COUNT_MAX, LIST_LENGTH_MAX, Manifest, ManifestError, ManifestProcess,
    ManifestSite, is_platform_variable, is_variable_name, persistent_path, platform_gives,
    relative_path,
};

/// Seconds of any duration: no start, probe or stop takes a day; a longer one is a typing mistake.
pub const DURATION_S_MAX: u64 = 24 * 60 * 60;
/// Bytes of memory below which no interpreter starts.
const MEMORY_BYTES_MIN: u64 = 4 << 20;
const CONCURRENCY_MAX: u32 = 100_000;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    name: Option<String>,
    #[serde(rename = "type")]
    framework: Option<String>,
    server: Option<String>,
    port: Option<u16>,
    #[serde(default)]
    domains: Vec<String>,
    build: Option<Vec<String>>,
    portable: Option<bool>,
    release: Option<Vec<String>>,
    #[serde(default)]
    persist: Vec<String>,
    #[serde(default)]
    baked: Vec<String>,
    #[serde(default)]
    persist_shared: bool,
    bus: Option<String>,
    isolation: Option<Isolation>,
    egress: Option<Egress>,
    rollout: Option<RolloutMode>,
    balance: Option<String>,
    protocol: Option<InstanceProtocol>,
    sticky: Option<String>,
    fair: Option<String>,
    slow_start: Option<String>,
    hedge_after: Option<String>,
    stop_grace: Option<String>,
    #[serde(default)]
    processes: BTreeMap<String, ProcessTable>,
    #[serde(default)]
    env: BTreeMap<String, Scalar>,
    #[serde(default)]
    health: super::health::HealthTable,
    #[serde(default)]
    limits: LimitsTable,
    #[serde(default)]
    requests: RequestsTable,
    #[serde(default)]
    https: super::https::HttpsTable,
    #[serde(default)]
    statics: Vec<Static>,
    #[serde(rename = "static")]
    site: Option<SiteTable>,
    #[serde(default)]
    cron: Vec<super::cron::CronTable>,
    #[serde(default)]
    ports: Vec<super::ports::PortTable>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a command, or a table of command, count and concurrency")]
enum ProcessTable {
    Command(String),
    Full(FullProcess),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct FullProcess {
    command: Option<String>,
    count: Option<u32>,
    concurrency: Option<u32>,
}

#[derive(Deserialize)]
#[serde(untagged, expecting = "a text, number or boolean")]
enum Scalar {
    Text(String),
    Integer(i64),
    Float(f64),
    Boolean(bool),
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsTable {
    memory: Option<String>,
    concurrency: Option<u32>,
    build_memory: Option<String>,
    build_cores: Option<u32>,
    build_time: Option<String>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RequestsTable {
    idle: Option<String>,
    head: Option<String>,
    body: Option<String>,
    queue: Option<String>,
    answer: Option<String>,
    body_size: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Static {
    prefix: String,
    directory: String,
    fallback: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct SiteTable {
    output: String,
    fallback: Option<String>,
}

pub fn parse(text: &str) -> Result<Manifest, ManifestError> {
    let error = |why: String| ManifestError { file: CORTEX_TOML, why };
    let file: File = toml::from_str(text.trim_start_matches('\u{feff}'))
        .map_err(|cause| error(cause.to_string().trim_end().to_owned()))?;
    validate(file).map_err(error)
}

fn validate(file: File) -> Result<Manifest, String> {
    for (name, length) in [
        ("domains", file.domains.len()),
        ("persist", file.persist.len()),
        ("baked", file.baked.len()),
        ("statics", file.statics.len()),
        ("processes", file.processes.len()),
        ("env", file.env.len()),
        ("build", file.build.as_ref().map_or(0, Vec::len)),
        ("release", file.release.as_ref().map_or(0, Vec::len)),
    ] {
        if length > LIST_LENGTH_MAX {
            return Err(format!("'{name}' has more than {LIST_LENGTH_MAX} entries"));
        }
    }
    let mut notes = Vec::new();
    let name = file.name.map(|name| name.parse()).transpose().map_err(|e| format!("name: {e}"))?;
    if file.port == Some(0) {
        return Err("port: 0 is not a port; use 1 to 65535, or leave it out".into());
    }
    Ok(Manifest {
        files: vec![CORTEX_TOML.into()],
        name,
        framework: file.framework,
        server: file.server,
        port: file.port,
        domains: domains(file.domains)?,
        environment: environment(file.env, &mut notes)?,
        processes: processes(file.processes)?,
        build: commands("build", file.build)?,
        baked: baked(file.baked)?,
        portable: file.portable,
        release: commands("release", file.release)?,
        persist: file.persist.iter().map(|path| persistent_path(path)).collect::<Result<_, _>>()?,
        persist_shared: file.persist_shared,
        bus: file.bus.map(bus).transpose()?,
        isolation: file.isolation,
        egress: egress(file.isolation, file.egress)?,
        statics: file.statics.into_iter().map(static_mount).collect::<Result<_, _>>()?,
        site: file.site.map(site).transpose()?,
        cron: super::cron::validate(file.cron)?,
        ports: super::ports::validate(file.ports, file.port, duration)?,
        health: super::health::of_table(file.health)?,
        memory_bytes: memory("limits.memory", file.limits.memory)?,
        concurrency: concurrency("limits.concurrency", file.limits.concurrency)?,
        build_memory_bytes: memory("limits.build_memory", file.limits.build_memory)?,
        build_cores: build_cores(file.limits.build_cores)?,
        build_time_ms: duration("limits.build_time", file.limits.build_time)?,
        requests: requests(file.requests)?,
        https: super::https::of_table(file.https)?,
        rollout: file.rollout,
        balance: file.balance,
        protocol: file.protocol,
        sticky: request_key("sticky", file.sticky)?,
        fair: fair(file.fair)?,
        slow_start_ms: duration("slow_start", file.slow_start)?,
        hedge_after_ms: duration("hedge_after", file.hedge_after)?,
        stop_grace_ms: duration("stop_grace", file.stop_grace)?,
        notes,
        ..Manifest::default()
    })
}

/// Returns where it may connect to. Nothing keeps an application from that whose network is the
/// machine's.
fn egress(isolation: Option<Isolation>, egress: Option<Egress>) -> Result<Egress, String> {
    match (isolation, egress) {
        (Some(Isolation::None | Isolation::Landlock | Isolation::Standard), Some(_)) => {
            Err("egress: only isolation = \"full\" has a network of its own; leave one out".into())
        }
        (_, egress) => Ok(egress.unwrap_or_default()),
    }
}

/// Returns names of variables, a `*` at the end standing for the rest.
fn baked(patterns: Vec<String>) -> Result<Vec<String>, String> {
    for pattern in &patterns {
        if !is_variable_name(pattern.strip_suffix('*').unwrap_or(pattern)) {
            let shown = pattern.escape_debug();
            return Err(format!(
                "baked: '{shown}' is neither a variable's name nor the start of one with '*', as in 'API_*'"
            ));
        }
    }
    Ok(patterns)
}

fn bus(variable: String) -> Result<String, String> {
    if is_variable_name(&variable) && !is_platform_variable(&variable) {
        return Ok(variable);
    }
    Err(format!(
        "bus: '{}' is no variable that an application could have; write for example 'REDIS_URL'",
        variable.escape_debug()
    ))
}

fn domains(domains: Vec<String>) -> Result<Vec<String>, String> {
    let mut names: Vec<String> = Vec::new();
    for domain in domains {
        let name = super::domains::domain(&domain).map_err(|why| format!("domains: {why}"))?;
        if !names.contains(&name) {
            names.push(name);
        }
    }
    Ok(names)
}

fn environment(
    env: BTreeMap<String, Scalar>,
    notes: &mut Vec<String>,
) -> Result<BTreeMap<String, String>, String> {
    let one = |(name, value): (String, Scalar)| {
        if !is_variable_name(&name) {
            let shown = name.escape_debug();
            return Err(format!("env: '{shown}' is not a variable's name; use A-Z, 0-9 and _"));
        }
        let value = match value {
            Scalar::Text(text) => text,
            Scalar::Integer(number) => number.to_string(),
            Scalar::Float(number) => number.to_string(),
            Scalar::Boolean(truth) => truth.to_string(),
        };
        if value.contains('\0') {
            return Err(format!("env: '{name}' holds a zero byte"));
        }
        Ok((name, value))
    };
    let given = env.keys().filter(|name| is_platform_variable(name));
    notes.extend(given.map(|name| platform_gives(CORTEX_TOML, name)));
    env.into_iter().filter(|(name, _)| !is_platform_variable(name)).map(one).collect()
}

fn processes(
    processes: BTreeMap<String, ProcessTable>,
) -> Result<BTreeMap<model::ProcessType, ManifestProcess>, String> {
    let one = |(name, process): (String, ProcessTable)| {
        if name.eq_ignore_ascii_case(model::ProcessType::WEB) && name != model::ProcessType::WEB {
            return Err(format!("processes: write '{name}' as 'web', which gets the requests"));
        }
        let kind = name.parse().map_err(|error| format!("processes: {error}"))?;
        let process = match process {
            ProcessTable::Command(command) => {
                FullProcess { command: Some(command), count: None, concurrency: None }
            }
            ProcessTable::Full(process) => process,
        };
        if process.count.is_some_and(|count| count > COUNT_MAX) {
            return Err(format!("processes.{name}.count must be 0 to {COUNT_MAX}"));
        }
        let command = process.command.map(|text| command("processes", &text)).transpose()?;
        let limit = concurrency(&format!("processes.{name}.concurrency"), process.concurrency)?;
        Ok((kind, ManifestProcess { command, count: process.count, concurrency: limit }))
    };
    processes.into_iter().map(one).collect()
}

fn commands(key: &str, list: Option<Vec<String>>) -> Result<Option<Vec<String>>, String> {
    list.map(|list| list.iter().map(|text| command(key, text)).collect()).transpose()
}

fn command(key: &str, text: &str) -> Result<String, String> {
    let text = text.trim();
    if text.is_empty() || text.contains('\0') {
        return Err(format!("{key}: a command is empty or holds a zero byte"));
    }
    Ok(text.into())
}

fn concurrency(key: &str, limit: Option<u32>) -> Result<Option<u32>, String> {
    match limit {
        Some(limit) if !(1..=CONCURRENCY_MAX).contains(&limit) => {
            Err(format!("{key} must be 1 to {CONCURRENCY_MAX}; leave it out for no limit"))
        }
        limit => Ok(limit),
    }
}

fn request_key(key: &str, text: Option<String>) -> Result<Option<RequestKey>, String> {
    text.map(|text| text.parse()).transpose().map_err(|error| format!("{key}: {error}"))
}

/// Returns the key of fair queueing. A cookie is refused: a client that sends none back would be a
/// new one each time.
fn fair(text: Option<String>) -> Result<Option<RequestKey>, String> {
    match request_key("fair", text)? {
        Some(RequestKey::Cookie(_)) => Err(
            "fair: a cookie tells no clients apart; write 'address', 'address/24' or 'header:NAME'"
                .into(),
        ),
        key => Ok(key),
    }
}

fn requests(requests: RequestsTable) -> Result<RequestLimits, String> {
    Ok(RequestLimits {
        idle_ms: duration("requests.idle", requests.idle)?,
        head_ms: duration("requests.head", requests.head)?,
        body_ms: duration("requests.body", requests.body)?,
        queue_ms: duration("requests.queue", requests.queue)?,
        answer_ms: duration("requests.answer", requests.answer)?,
        body_bytes_max: body_size(requests.body_size)?,
    })
}

fn body_size(text: Option<String>) -> Result<Option<u64>, String> {
    let Some(text) = text else { return Ok(None) };
    match size(&text) {
        Some(bytes) if bytes > 0 => Ok(Some(bytes)),
        _ => Err(format!(
            "requests.body_size: '{}' is not a size; write '64KB' or '10MB', or leave it out for no limit",
            text.escape_debug()
        )),
    }
}

fn static_mount(entry: Static) -> Result<StaticMount, String> {
    let prefix = match entry.prefix.trim_matches('/') {
        "" => "/".to_owned(),
        inner => format!("/{inner}/"),
    };
    let directory = directory("statics", &entry.directory)?;
    let fallback = entry.fallback.map(|path| relative_path(&path)).transpose()?;
    Ok(StaticMount { prefix, directory, fallback })
}

fn site(entry: SiteTable) -> Result<ManifestSite, String> {
    let output = directory("static.output", &entry.output)?;
    let fallback = entry.fallback.map(|path| relative_path(&path)).transpose()?;
    Ok(ManifestSite { output, fallback })
}

fn directory(key: &str, text: &str) -> Result<String, String> {
    match text {
        "." | "./" => Ok(".".to_owned()),
        directory => relative_path(directory).map_err(|why| format!("{key}: {why}")),
    }
}

pub(super) fn duration(key: &str, text: Option<String>) -> Result<Option<u64>, String> {
    let Some(text) = text else { return Ok(None) };
    let (number, unit) = split_unit(&text);
    let factor = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" | "min" => 60_000,
        _ => 0,
    };
    let ms = number.and_then(|number| number.checked_mul(factor));
    match ms {
        Some(ms) if ms > 0 && ms <= DURATION_S_MAX * 1_000 => Ok(Some(ms)),
        _ => Err(format!(
            "{key}: '{}' is not a duration of at most a day; write '500ms', '30s' or '2m'",
            text.escape_debug()
        )),
    }
}

fn build_cores(cores: Option<u32>) -> Result<Option<u32>, String> {
    match cores {
        Some(0) => {
            Err("limits.build_cores must be 1 or more; leave it out for half of them".into())
        }
        cores => Ok(cores),
    }
}

fn memory(key: &str, text: Option<String>) -> Result<Option<u64>, String> {
    let Some(text) = text else { return Ok(None) };
    match size(&text) {
        Some(bytes) if bytes >= MEMORY_BYTES_MIN => Ok(Some(bytes)),
        _ => Err(format!(
            "{key}: '{}' is not a size of at least 4 MB; write '512MB' or '1GB'",
            text.escape_debug()
        )),
    }
}

/// Returns the bytes of a size that a person wrote, such as `512MB`.
pub fn size(text: &str) -> Option<u64> {
    let (number, unit) = split_unit(text);
    let factor = match unit.to_ascii_lowercase().as_str() {
        "k" | "kb" | "kib" => 1 << 10,
        "m" | "mb" | "mib" => 1 << 20,
        "g" | "gb" | "gib" => 1_u64 << 30,
        _ => 0,
    };
    number?.checked_mul(factor)
}

fn split_unit(text: &str) -> (Option<u64>, &str) {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    (text[..end].parse().ok(), text[end..].trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_out_needs_a_network_of_its_own() {
        let (none, all) = (Some(Egress::None), Some(Egress::All));
        for (isolation, asked, given) in [
            (Some(Isolation::Full), all, Some(Egress::All)),
            (Some(Isolation::Full), None, Some(Egress::None)),
            (Some(Isolation::Standard), None, Some(Egress::None)),
            (Some(Isolation::Standard), all, None),
            (Some(Isolation::None), none, None),
            // The platform's default may be one.
            (None, all, Some(Egress::All)),
        ] {
            assert_eq!(egress(isolation, asked).ok(), given, "{isolation:?} {asked:?}");
        }
    }
}
