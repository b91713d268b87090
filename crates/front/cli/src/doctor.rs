//! `cortex doctor`.

use clap::Args;

use super::{Exit, Json, Session, output};
use api_types::{Check, CheckResult};

#[derive(Debug, Args)]
pub struct Doctor {
    #[command(flatten)]
    json: Json,
}

impl Doctor {
    pub async fn run(self, session: &Session) -> anyhow::Result<()> {
        let checks: Vec<Check> = session.client.get("/v1/doctor").await?;
        if self.json.json {
            output::json(&checks)?;
        } else {
            for check in &checks {
                print(check)?;
            }
        }
        let failed = checks.iter().any(|check| check.result == CheckResult::Fail);
        if failed { Err(Exit(1).into()) } else { Ok(()) }
    }
}

fn print(check: &Check) -> anyhow::Result<()> {
    let word = match check.result {
        CheckResult::Ok => "ok",
        CheckResult::Warn => "warn",
        CheckResult::Fail => "FAIL",
    };
    output::print(&format!("{word:<4}  {:<15} {}", check.name, check.detail))?;
    match &check.advice {
        Some(advice) => output::print(&format!("{:22}{advice}", "")),
        None => Ok(()),
    }
}
