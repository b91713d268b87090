//! The doctor: looks for what would keep applications from running here, and says what to do about
//! it.

mod public_ports;

use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant, SystemTime};

use axum::Json;
use axum::extract::State;
use model::Wall;
use model::role::Role;
use rustix::process::{Resource, getrlimit};

use super::{Api, Shared, backups, domains, isolation};
use api_types::{Check, CheckResult};

/// Free bytes below which a push of a large application may not fit.
const DISK_FREE_WARN: u64 = 2 * 1024 * 1024 * 1024;
/// Free bytes below which the store's next segment and a log may not fit.
const DISK_FREE_FAIL: u64 = 256 * 1024 * 1024;
/// The limit of open files below which it warns: a router holds two descriptors per request.
const DESCRIPTORS_WARN: u64 = 4096;
const TOOL_TIMEOUT: Duration = Duration::from_secs(10);
const TOOL_POLL: Duration = Duration::from_millis(10);
/// Bytes read of a tool's output: a version is one line.
const TOOL_OUTPUT_MAX: u64 = 4096;
/// The earliest time believed: a clock before this project's first year is unset.
const CLOCK_EARLIEST: Duration = Duration::from_secs(1_735_689_600);
/// Programs, the arguments that make them say their version, and what does not work without them.
const TOOLS: &[(&str, &[&str], &str)] = &[
    ("git", &["--version"], "pushing a Git repository's revisions"),
    ("python3", &["--version"], "Python applications"),
    ("ruby", &["--version"], "Ruby and Rails applications"),
    ("bundle", &["--version"], "Ruby applications with a Gemfile"),
    ("node", &["--version"], "Node applications"),
    ("npm", &["--version"], "Node applications with dependencies"),
];

pub async fn doctor(State(api): State<Shared>) -> Json<Vec<Check>> {
    let mut checks = vec![
        writable(api.layout.root()),
        disk_free(api.layout.root()),
        descriptors(),
        clock(),
        sockets(&api),
    ];
    checks.extend(ports(&api));
    if api.roles.has(Role::Router) {
        checks.extend(public_ports::check(&own_addresses(&api)));
    }
    checks.extend(walls(&api).await);
    checks.extend(claims(&api).await);
    checks.extend(own_names(&api).await);
    checks.extend(copies(&api).await);
    let tools = TOOLS.iter().map(|(tool, arguments, use_of)| find(tool, arguments, use_of));
    checks.extend(futures_util::future::join_all(tools).await);
    Json(checks)
}

fn ok(name: &str, detail: impl Into<String>) -> Check {
    Check { name: name.into(), result: CheckResult::Ok, detail: detail.into(), advice: None }
}

fn warn(name: &str, detail: impl Into<String>, advice: &str) -> Check {
    let advice = Some(advice.into());
    Check { name: name.into(), result: CheckResult::Warn, detail: detail.into(), advice }
}

fn fail(name: &str, detail: impl Into<String>, advice: &str) -> Check {
    Check { result: CheckResult::Fail, ..warn(name, detail, advice) }
}

/// Checks the copies of the cluster that are made by themselves, where there are to be any.
async fn copies(api: &Api) -> Option<Check> {
    let problem = backups::standing(api).await?;
    Some(match problem {
        None => ok("back-ups", "made as scheduled"),
        Some(problem) => fail(
            "back-ups",
            problem,
            "mend it and try: `cortex backups capture`; `cortex backups` lists the last ones",
        ),
    })
}

fn writable(data: &Path) -> Check {
    let probe = data.join(format!("doctor-{}", std::process::id()));
    let written = std::fs::write(&probe, b"x");
    std::fs::remove_file(&probe).ok();
    match written {
        Ok(()) => ok("data directory", format!("{} is writable", data.display())),
        Err(error) => fail(
            "data directory",
            format!("{} cannot be written: {error}", data.display()),
            "fix its owner, its mode or the disk, then restart the node",
        ),
    }
}

fn disk_free(data: &Path) -> Check {
    let free = match rustix::fs::statvfs(data) {
        Ok(stat) => stat.f_bavail.saturating_mul(stat.f_frsize),
        Err(error) => return fail("disk", format!("not known: {error}"), "check the mount"),
    };
    let detail = format!("{} MiB free", free / (1024 * 1024));
    let advice = "free some space: old releases and logs are in the data directory's `apps`";
    match free {
        free if free < DISK_FREE_FAIL => fail("disk", detail, advice),
        free if free < DISK_FREE_WARN => warn("disk", detail, advice),
        _ => ok("disk", detail),
    }
}

fn descriptors() -> Check {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let detail = format!("{limit} open files allowed");
    if limit < DESCRIPTORS_WARN {
        return warn("limits", detail, "raise it before `cortex up`: `ulimit -n 65536`");
    }
    ok("limits", detail)
}

fn clock() -> Check {
    match SystemTime::now().duration_since(SystemTime::UNIX_EPOCH) {
        Ok(since) if since > CLOCK_EARLIEST => ok("clock", "set"),
        _ => fail("clock", "the machine's clock is years behind", "set it, or run a time service"),
    }
}

fn sockets(api: &Api) -> Check {
    let path = api.layout.api_socket();
    if path.exists() {
        return ok("socket", path.display().to_string());
    }
    let detail = format!("{} was removed", path.display());
    fail("socket", detail, "restart the node: new commands cannot reach it")
}

fn ports(api: &Api) -> Vec<Check> {
    let ports = api.control.ports();
    let bad: Vec<Check> = ports
        .iter()
        .filter_map(|port| {
            let error = port.error.as_ref()?;
            let detail = format!("{} ({}): {error}", port.address, port.protocol);
            Some(fail("port", detail, "stop what listens there, or choose another port"))
        })
        .collect();
    if bad.is_empty() { vec![ok("ports", format!("{} bound", ports.len()))] } else { bad }
}

fn own_addresses(api: &Api) -> Vec<SocketAddr> {
    let ports = api.control.ports().into_iter().filter(|port| port.error.is_none());
    ports.filter_map(|port| port.address.parse().ok()).collect()
}

/// Tries whether a wall can be built; that matters most where the platform wants them.
async fn walls(api: &Api) -> Option<Check> {
    api.agent.as_ref()?;
    let Some(why) = isolation::obstacle_and_rest(api).await else {
        return Some(more_walls(api).await);
    };
    let wanted = isolation::of_platform(api).await.is_ok_and(|(default, _)| !default.is_none());
    let remedy = shim::sandbox::attempt::remedy(Wall::Standard);
    let advice = format!("{remedy}, then restart the node");
    Some(if wanted { fail("isolation", why, &advice) } else { warn("isolation", why, &advice) })
}

/// Tries the walls beyond the usual one; what no application asks for is no fault.
async fn more_walls(api: &Api) -> Check {
    for (wall, what) in [
        (Wall::Full, "isolation = \"full\""),
        (Wall::FullEgress, "isolation = \"full\" with egress = \"all\""),
    ] {
        let Some(why) = isolation::obstacle(api, wall).await else { continue };
        let remedy = shim::sandbox::attempt::remedy(wall);
        let detail = format!("walls around applications can be built, but for {what}: {why}");
        let advice = format!("{remedy}, then restart the node");
        return match isolation::is_asked_for(api, wall).await {
            true => warn("isolation", detail, &advice),
            false => ok("isolation", format!("{detail}; {advice}, if it is wanted")),
        };
    }
    ok("isolation", "walls around applications can be built")
}

/// Checks for claims that clash: two nodes that did not hear of each other may have let two
/// applications have the same domain or port.
async fn claims(api: &Api) -> Vec<Check> {
    match domains::clashes(api).await {
        Ok(clashes) if clashes.is_empty() => Vec::new(),
        Ok(clashes) => {
            let check = |one: &domains::Clash| {
                warn("claims", one.said(), &format!("decide whose it is: {}", one.advice()))
            };
            clashes.iter().map(check).collect()
        }
        Err(problem) => vec![warn("claims", problem.body().detail, "look at the node's own log")],
    }
}

/// Checks the names of the platform itself, which no command about an application shows.
async fn own_names(api: &Api) -> Vec<Check> {
    super::own_names::checks(api).await.unwrap_or_else(|problem| {
        vec![warn("own name", problem.body().detail, "look at the node's own log")]
    })
}

async fn find(tool: &'static str, arguments: &'static [&'static str], use_of: &str) -> Check {
    let asked = runtime::task::spawn_blocking(move || version(tool, arguments)).await;
    match asked.unwrap_or_else(|error| Err(error.to_string())) {
        Ok(version) => ok(tool, version),
        Err(why) => warn(tool, why, &format!("install it for {use_of}")),
    }
}

/// Runs a tool for its version. It blocks, so only threads that may block call it.
fn version(tool: &str, arguments: &[&str]) -> Result<String, String> {
    let started = Command::new(tool)
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut child = started.map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => "not found".to_string(),
        _ => format!("cannot be run: {error}"),
    })?;
    let deadline = Instant::now() + TOOL_TIMEOUT;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < deadline => std::thread::sleep(TOOL_POLL),
            Ok(None) => {
                child.kill().ok();
                child.wait().ok();
                return Err(format!("does not answer within {} s", TOOL_TIMEOUT.as_secs()));
            }
            Err(error) => return Err(format!("cannot be run: {error}")),
        }
    };
    if !status.success() {
        return Err(format!("fails with {status}"));
    }
    let mut text = String::new();
    if let Some(output) = child.stdout {
        output
            .take(TOOL_OUTPUT_MAX)
            .read_to_string(&mut text)
            .map_err(|error| format!("reports no version: {error}"))?;
    }
    Ok(text.lines().next().unwrap_or("no version").trim().to_string())
}
