//! The protocol between a witness and the node that runs an instance: a question and an answer, a
//! line of JSON each, one after the other on one stream.

use checker_core::ProbeOutcome;
use model::{Generation, InstanceId};
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

pub const VERSION: u32 = 1;
/// The maximum length of a line in bytes: far more than two names and a reason take.
const LINE_BYTES_MAX: u64 = 16 * 1024;
/// The maximum length of what a probe saw, in characters.
const DETAIL_CHARS_MAX: usize = 500;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WitnessQuestion {
    pub v: u32,
    pub instance: InstanceId,
    pub generation: Generation,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WitnessAnswer {
    pub v: u32,
    pub seen: Sighting,
    #[serde(default)]
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Sighting {
    Well,
    Absent,
    Unwell,
    /// It was not looked at, as that incarnation is not up there; or the answer is of a newer kind.
    #[serde(other)]
    Nothing,
}

impl WitnessAnswer {
    pub fn of(outcome: ProbeOutcome) -> WitnessAnswer {
        let (seen, detail) = match outcome {
            ProbeOutcome::Well => (Sighting::Well, String::new()),
            ProbeOutcome::Absent { detail } => (Sighting::Absent, detail),
            ProbeOutcome::Unwell { detail } => (Sighting::Unwell, detail),
            ProbeOutcome::Unreached => (Sighting::Nothing, String::new()),
        };
        WitnessAnswer { v: VERSION, seen, detail }
    }

    pub fn into_outcome(self) -> ProbeOutcome {
        let detail = self.detail.chars().take(DETAIL_CHARS_MAX).collect();
        match self.seen {
            Sighting::Well => ProbeOutcome::Well,
            Sighting::Absent => ProbeOutcome::Absent { detail },
            Sighting::Unwell => ProbeOutcome::Unwell { detail },
            Sighting::Nothing => ProbeOutcome::Unreached,
        }
    }
}

pub async fn write(
    stream: &mut (impl AsyncWrite + Unpin),
    message: &impl Serialize,
) -> anyhow::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line).await?;
    Ok(stream.flush().await?)
}

/// Reads a message; `None` when the other side has ended.
pub async fn read<T: serde::de::DeserializeOwned>(
    stream: &mut (impl AsyncBufRead + Unpin),
) -> anyhow::Result<Option<T>> {
    let mut line = Vec::new();
    stream.take(LINE_BYTES_MAX).read_until(b'\n', &mut line).await?;
    if line.last() != Some(&b'\n') {
        anyhow::ensure!(line.is_empty(), "a line that does not end");
        return Ok(None);
    }
    Ok(Some(serde_json::from_slice(&line)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::BufReader;

    #[tokio::test]
    async fn answers_are_read_back_and_unknown_ones_say_nothing() {
        let answer =
            WitnessAnswer::of(ProbeOutcome::Unwell { detail: "GET /up answered 500".into() });
        let mut bytes = Vec::new();
        write(&mut bytes, &answer).await.unwrap();
        bytes.extend_from_slice(b"{\"v\":2,\"seen\":\"something_newer\",\"more\":1}\n");
        bytes.extend_from_slice(b"half a line");
        let mut stream = BufReader::new(&bytes[..]);
        assert_eq!(read(&mut stream).await.unwrap(), Some(answer));
        let newer: WitnessAnswer = read(&mut stream).await.unwrap().unwrap();
        assert_eq!(newer.into_outcome(), ProbeOutcome::Unreached);
        read::<WitnessAnswer>(&mut stream).await.unwrap_err();
        assert_eq!(read::<WitnessAnswer>(&mut BufReader::new(&b""[..])).await.unwrap(), None);
        let long = vec![b' '; 20_000];
        read::<WitnessAnswer>(&mut BufReader::new(&long[..])).await.unwrap_err();
    }
}
