"""The system on hardware that is not at hand: profiles, costs of passes, and a simulator driven by recorded
text."""
