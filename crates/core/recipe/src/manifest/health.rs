//! The probes of instances: `[health]` of `cortex.toml`, and `healthchecks` of `app.json` as Dokku
//! has them.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde_json::{Map, Value};

use super::cortex_toml::{DURATION_S_MAX, duration};
use super::domains::host_header;
use super::{APP_JSON, LIST_LENGTH_MAX, ManifestHealth};

/// Bytes of a header; longer ones hold no credentials of a probe.
const HEADER_BYTES_MAX: usize = 4096;
/// Headers that say how the request itself is read.
const FRAMING: [&str; 6] =
    ["connection", "content-length", "transfer-encoding", "upgrade", "te", "expect"];
/// Keys of Dokku's checks that are understood, or about how it reports them.
const KNOWN: [&str; 10] = [
    "type",
    "name",
    "description",
    "path",
    "httpHeaders",
    "timeout",
    "wait",
    "attempts",
    "initialDelay",
    "warn",
];

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HealthTable {
    path: Option<String>,
    host: Option<String>,
    #[serde(default)]
    headers: BTreeMap<String, String>,
    start_timeout: Option<String>,
    settle: Option<String>,
    timeout: Option<String>,
    interval: Option<String>,
}

pub(super) fn of_table(table: HealthTable) -> Result<ManifestHealth, String> {
    if let Some(path) = table.path.as_ref().filter(|path| !is_path(path)) {
        return Err(format!("health.path: '{}' must begin with '/'", path.escape_debug()));
    }
    let mut health = ManifestHealth {
        path: table.path,
        start_timeout_ms: duration("health.start_timeout", table.start_timeout)?,
        settle_ms: duration("health.settle", table.settle)?,
        timeout_ms: duration("health.timeout", table.timeout)?,
        interval_ms: duration("health.interval", table.interval)?,
        ..ManifestHealth::default()
    };
    if table.headers.len() > LIST_LENGTH_MAX {
        return Err(format!("'health.headers' has more than {LIST_LENGTH_MAX} entries"));
    }
    for (name, value) in table.headers {
        set_header(&mut health, &name, &value).map_err(|why| format!("health.headers: {why}"))?;
    }
    if let Some(host) = table.host {
        let host = host_header(&host).map_err(|why| format!("health.host: {why}"))?;
        health.host = Some(host);
    }
    Ok(health)
}

fn is_path(path: &str) -> bool {
    path.starts_with('/') && path.bytes().all(|byte| byte.is_ascii_graphic())
}

fn set_header(health: &mut ManifestHealth, name: &str, value: &str) -> Result<(), String> {
    let shown = name.escape_debug();
    // RFC 9110, section 5.6.2: a token.
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    let visible = |byte: u8| byte == b' ' || byte == b'\t' || byte.is_ascii_graphic();
    if name.is_empty() || !name.bytes().all(token) {
        return Err(format!(
            "'{shown}' is not a header's name: write for example 'X-Forwarded-Proto'"
        ));
    }
    if !value.bytes().all(visible) || name.len() + value.len() > HEADER_BYTES_MAX {
        return Err(format!("the value of '{shown}' is not a single line of visible ASCII"));
    }
    if FRAMING.iter().any(|one| name.eq_ignore_ascii_case(one)) {
        return Err(format!("'{shown}' says how the request is read: leave it out"));
    }
    if name.eq_ignore_ascii_case("host") {
        health.host = Some(host_header(value.trim())?);
    } else {
        health.headers.insert(name.into(), value.trim().into());
    }
    Ok(())
}

/// Returns the first check of `web` that asks for a path; Dokku's own default is `/`.
pub(super) fn of_checks(
    checks: &Map<String, Value>,
    notes: &mut Vec<String>,
) -> Result<ManifestHealth, String> {
    let mut health = ManifestHealth::default();
    for (process, list) in checks {
        let list = list.as_array().map(Vec::as_slice).unwrap_or_default();
        let asks = |check: &&Value| check.get("path").is_some_and(Value::is_string);
        let Some(check) = list.iter().find(asks).filter(|_| process == "web") else {
            notes.push(super::app_json::ignored(&format!("healthchecks.{process}")));
            continue;
        };
        if list.len() > 1 {
            notes.push(format!(
                "{APP_JSON}: of 'healthchecks.{process}' the first with a path is used alone: one \
                 question is asked at the start and then again and again"
            ));
        }
        for key in check.as_object().into_iter().flat_map(Map::keys) {
            if !KNOWN.contains(&key.as_str()) {
                notes.push(super::app_json::ignored(&format!("healthchecks.{process}.{key}")));
            }
        }
        read_check(check, &mut health)?;
    }
    Ok(health)
}

fn read_check(check: &Value, health: &mut ManifestHealth) -> Result<(), String> {
    let path = check.get("path").and_then(Value::as_str).unwrap_or("/");
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    if !is_path(&path) {
        return Err(format!("healthchecks: '{}' is not a URL's path", path.escape_debug()));
    }
    health.path = Some(path);
    let ms = |key: &str| {
        let seconds = check.get(key).and_then(Value::as_u64)?;
        (1..=DURATION_S_MAX).contains(&seconds).then_some(seconds * 1000)
    };
    health.timeout_ms = ms("timeout");
    health.interval_ms = ms("wait");
    if let Some(attempts) = check.get("attempts").and_then(Value::as_u64) {
        let wait_ms = ms("wait").unwrap_or(1_000) + ms("timeout").unwrap_or(1_000);
        let all = attempts.saturating_mul(wait_ms) + ms("initialDelay").unwrap_or(0);
        // Attempts are meant for a process that is nearly up; the time is never less than the
        // default.
        let default = model::application::START_TIMEOUT_MS_DEFAULT;
        health.start_timeout_ms = Some(all.clamp(default, DURATION_S_MAX * 1000));
    }
    let headers = check.get("httpHeaders").and_then(Value::as_array);
    for header in headers.map(Vec::as_slice).unwrap_or_default().iter().take(LIST_LENGTH_MAX) {
        let text = |key: &str| header.get(key).and_then(Value::as_str);
        let (Some(name), Some(value)) = (text("name"), text("value")) else {
            return Err("healthchecks: each of 'httpHeaders' has a 'name' and a 'value'".into());
        };
        set_header(health, name, value).map_err(|why| format!("healthchecks: {why}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::read_cortex_toml;

    #[test]
    fn a_probe_has_a_name_and_headers() {
        let text = "[health]\npath = '/up'\nhost = 'Bücher.example'\n\
                    headers = { X-Forwarded-Proto = 'https' }";
        let health = read_cortex_toml(text).unwrap().health;
        assert_eq!(health.host.as_deref(), Some("xn--bcher-kva.example"));
        assert_eq!(health.headers["X-Forwarded-Proto"], "https");
        let other = read_cortex_toml("[health]\nheaders = { host = 'a.example' }").unwrap().health;
        assert_eq!(other.host.as_deref(), Some("a.example"));
        for (text, said) in [
            ("host = 'a b'", "health.host: 'a b' is not a host name"),
            ("headers = { 'a b' = 'x' }", "not a header's name"),
            ("headers = { a = \"x\\r\\nb: c\" }", "not a single line"),
            ("headers = { Content-Length = '0' }", "leave it out"),
            ("path = 'up'", "must begin with '/'"),
        ] {
            let error = read_cortex_toml(&format!("[health]\n{text}")).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }

    #[test]
    fn checks_of_dokku_are_read() {
        let text = r#"{
            "web": [
                {"type": "uptime", "uptime": 5},
                {"path": "up", "attempts": 3, "content": "ok", "httpHeaders": [
                    {"name": "Host", "value": "shop.example"}, {"name": "X-A", "value": "b"}
                ]}
            ],
            "worker": [{"path": "/x"}]
        }"#;
        let mut notes = Vec::new();
        let health = of_checks(&serde_json::from_str(text).unwrap(), &mut notes).unwrap();
        assert_eq!(health.path.as_deref(), Some("/up"));
        assert_eq!(health.host.as_deref(), Some("shop.example"));
        assert_eq!(health.headers["X-A"], "b");
        let notes = notes.join("\n");
        for said in ["healthchecks.worker", "healthchecks.web.content", "the first with a path"] {
            assert!(notes.contains(said), "{notes}");
        }
        let bad = r#"{"web": [{"path": "/", "httpHeaders": [{"name": "A"}]}]}"#;
        assert!(of_checks(&serde_json::from_str(bad).unwrap(), &mut Vec::new()).is_err());
    }
}
