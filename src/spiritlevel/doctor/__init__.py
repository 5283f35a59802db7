"""What this machine can do: packages, devices, room, and whether the numbers come out right."""

from spiritlevel.doctor.diagnosis import Diagnosis, examine

__all__ = ["Diagnosis", "examine"]
