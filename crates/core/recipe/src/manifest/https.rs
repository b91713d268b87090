//! `[https]` of `cortex.toml`: what clients get that come without TLS, and what browsers remember.

use model::application::HttpsSettings;
use serde::Deserialize;

/// The longest time for which browsers are told to come by HTTPS alone, in days: two years, as the
/// lists want that browsers are shipped with.
const HSTS_DAYS_MAX: u64 = 731;
const DAY_SECONDS: u64 = 24 * 60 * 60;

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct HttpsTable {
    redirect: Option<bool>,
    hsts: Option<String>,
}

pub(super) fn of_table(table: HttpsTable) -> Result<HttpsSettings, String> {
    let hsts_seconds = table.hsts.as_deref().map(hsts).transpose()?;
    Ok(HttpsSettings { redirect: table.redirect.unwrap_or(true), hsts_seconds })
}

/// Reads a time in days, or in what is shorter; `0s` takes back what browsers were told.
fn hsts(text: &str) -> Result<u64, String> {
    let unit = text.trim_start_matches(|c: char| c.is_ascii_digit());
    let number = text[..text.len() - unit.len()].parse::<u64>().ok();
    let factor = match unit {
        "s" => Some(1),
        "m" | "min" => Some(60),
        "h" => Some(60 * 60),
        "d" => Some(DAY_SECONDS),
        _ => None,
    };
    let seconds = number.zip(factor).and_then(|(number, factor)| number.checked_mul(factor));
    seconds.filter(|seconds| *seconds <= HSTS_DAYS_MAX * DAY_SECONDS).ok_or_else(|| {
        format!(
            "https.hsts: '{}' is not a time of at most {HSTS_DAYS_MAX} days; write '180d', or \
             '5m' to try it",
            text.escape_debug()
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read() {
        for (text, expected) in
            [("180d", 15_552_000), ("5m", 300), ("1h", 3600), ("0s", 0), ("731d", 63_158_400)]
        {
            assert_eq!(hsts(text), Ok(expected), "{text}");
        }
        for bad in [
            "",
            "d",
            "180",
            "732d",
            "1y",
            "-1d",
            "99999999999999999999d",
            "1 d",
            "ä",
            "0",
            "0y",
            "0 d",
        ] {
            assert!(hsts(bad).unwrap_err().contains("https.hsts"), "{bad}");
        }
    }
}
